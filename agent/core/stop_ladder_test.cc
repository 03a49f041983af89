// SPDX-License-Identifier: Apache-2.0
#include "agent/core/stop_ladder.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/clock.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kS = kNsPerSec;

TEST(StopLadder, KillsAtOnceAndAgainWhileSomethingLives) {
  StopState state;
  BeginStop(StopKind::kKill, 0, 100 * kS, &state);
  StopStep step = NextStopStep(100 * kS, &state);
  EXPECT_EQ(step.signal, SIGKILL);
  EXPECT_EQ(step.next_ns, 101 * kS);
  EXPECT_EQ(NextStopStep(100 * kS + 1, &state).signal, 0);
  EXPECT_EQ(NextStopStep(101 * kS, &state).signal, SIGKILL);
}

TEST(StopLadder, TermThenKillAfterTenSeconds) {
  StopState state;
  BeginStop(StopKind::kTerm, 0, 100 * kS, &state);
  StopStep step = NextStopStep(100 * kS, &state);
  EXPECT_EQ(step.signal, SIGTERM);
  EXPECT_FALSE(step.set_should_stop);
  EXPECT_EQ(step.next_ns, 110 * kS);
  EXPECT_EQ(NextStopStep(110 * kS - 1, &state).signal, 0);
  EXPECT_EQ(NextStopStep(110 * kS, &state).signal, SIGKILL);
}

TEST(StopLadder, GracefulAsksFirstThenTermThenKill) {
  StopState state;
  BeginStop(StopKind::kGraceful, 30 * kS, 100 * kS, &state);
  StopStep step = NextStopStep(100 * kS, &state);
  EXPECT_TRUE(step.set_should_stop);
  EXPECT_EQ(step.signal, 0);
  EXPECT_EQ(step.next_ns, 130 * kS);
  step = NextStopStep(120 * kS, &state);
  EXPECT_FALSE(step.set_should_stop);
  EXPECT_EQ(step.signal, 0);
  EXPECT_EQ(NextStopStep(130 * kS, &state).signal, SIGTERM);
  EXPECT_EQ(NextStopStep(139 * kS, &state).signal, 0);
  EXPECT_EQ(NextStopStep(140 * kS, &state).signal, SIGKILL);
}

TEST(StopLadder, AHarderOrderOvertakesASofterOneAndNotTheReverse) {
  StopState state;
  BeginStop(StopKind::kGraceful, 30 * kS, 100 * kS, &state);
  NextStopStep(100 * kS, &state);
  BeginStop(StopKind::kKill, 0, 105 * kS, &state);
  EXPECT_EQ(NextStopStep(105 * kS, &state).signal, SIGKILL);
  BeginStop(StopKind::kTerm, 0, 106 * kS, &state);
  EXPECT_EQ(state.kind, StopKind::kKill);
  EXPECT_EQ(NextStopStep(106 * kS, &state).signal, SIGKILL);
}

TEST(StopLadder, NothingWithoutAnOrder) {
  StopState state;
  BeginStop(StopKind::kNone, 0, 100 * kS, &state);
  const StopStep step = NextStopStep(100 * kS, &state);
  EXPECT_EQ(step.signal, 0);
  EXPECT_EQ(step.next_ns, 0);
}

}  // namespace
}  // namespace holdfast::agent
