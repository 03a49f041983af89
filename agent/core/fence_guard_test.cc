// SPDX-License-Identifier: Apache-2.0
#include "agent/core/fence_guard.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kS = kNsPerSec;

TEST(FenceGuard, AnAgentThatHeardNobodyDoesNotMoveTheDeadline) {
  FenceGuard guard;
  EXPECT_EQ(guard.DeadlineNs(30'000), std::nullopt);
  guard.SetWitnesses({"unix:/a", "unix:/b"});
  EXPECT_EQ(guard.DeadlineNs(30'000), std::nullopt);
}

TEST(FenceGuard, WithoutWitnessesANodeNeverFences) {
  FenceGuard guard;
  guard.BeatAnswered(100 * kS);
  EXPECT_EQ(guard.DeadlineNs(30'000), 0);
}

TEST(FenceGuard, CountsFromTheSendingOfTheLastAnsweredBeat) {
  FenceGuard guard;
  guard.SetWitnesses({"unix:/a"});
  guard.BeatAnswered(100 * kS);
  EXPECT_EQ(guard.DeadlineNs(30'000), 130 * kS);
  guard.BeatAnswered(99 * kS);  // a late answer of an older beat proves nothing newer
  EXPECT_EQ(guard.DeadlineNs(30'000), 130 * kS);
}

TEST(FenceGuard, HalfOfTheWitnessesKeepANodeAliveWithoutAScheduler) {
  FenceGuard guard;
  guard.SetWitnesses({"a", "b", "c", "d", "e"});
  guard.BeatAnswered(100 * kS);
  guard.WitnessAnswered("a", 150 * kS);
  guard.WitnessAnswered("b", 160 * kS);
  EXPECT_EQ(guard.DeadlineNs(30'000), 130 * kS) << "two of five are less than half";
  guard.WitnessAnswered("c", 140 * kS);
  EXPECT_EQ(guard.DeadlineNs(30'000), 170 * kS) << "three answered, the oldest of these at 140";
  guard.SetWitnesses({"a", "b"});
  EXPECT_EQ(guard.DeadlineNs(30'000), 190 * kS) << "one of two is half";
}

TEST(FenceGuard, ForgetsWitnessesThatAreNone) {
  FenceGuard guard;
  guard.SetWitnesses({"a", "b"});
  guard.WitnessAnswered("x", 500 * kS);
  EXPECT_EQ(guard.DeadlineNs(30'000), std::nullopt);
  guard.SetWitnesses({"1", "2", "3", "4", "5", "6", "7"});
  EXPECT_EQ(guard.Witnesses().size(), static_cast<size_t>(kWitnessesMax));
}

}  // namespace
}  // namespace holdfast::agent
