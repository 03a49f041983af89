// SPDX-License-Identifier: Apache-2.0
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/core/fence_release.h"
#include "scheduler/core/node_liveness.h"

namespace holdfast::sched {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBeat = 10 * kNsPerSec;

LivenessVerdict After(int64_t ms, std::map<std::string, ProbeAnswer> answers = {}) {
  LivenessInput input;
  input.last_beat_mono_ns = kBeat;
  input.asked = static_cast<uint32_t>(answers.size());
  input.answers = std::move(answers);
  return JudgeLiveness(input, kBeat + ms * kNsPerMs);
}

ProbeAnswer Answer(bool reachable, int64_t heard_age_ms, int64_t at_ms) {
  return {.answered = true,
          .reachable = reachable,
          .last_heard_age_ms = heard_age_ms,
          .at_mono_ns = kBeat + at_ms * kNsPerMs};
}

TEST(NodeLiveness, SuspectFromTheSecondMissedBeatLostAfterTheLease) {
  EXPECT_EQ(After(1000).liveness, Liveness::kReady);
  EXPECT_EQ(After(1001).liveness, Liveness::kSuspect);
  EXPECT_TRUE(After(1001).ask_neighbours);
  EXPECT_EQ(After(2499).liveness, Liveness::kSuspect);
  EXPECT_EQ(After(2500).liveness, Liveness::kLost);
  EXPECT_THAT(After(2500).reason, HasSubstr("lease 2500 ms"));
}

TEST(NodeLiveness, ANeighbourThatHearsItKeepsItSuspect) {
  EXPECT_EQ(After(9000, {{"n1", Answer(true, -1, 8500)}}).liveness, Liveness::kSuspect);
  EXPECT_EQ(After(9000, {{"n1", Answer(false, 100, 8500)}}).liveness, Liveness::kSuspect);
  EXPECT_EQ(After(9000, {{"n1", Answer(false, -1, 8500)}, {"n2", Answer(true, -1, 8900)}}).liveness,
            Liveness::kSuspect);
}

TEST(NodeLiveness, OldOrMissingAnswersProveNothing) {
  EXPECT_EQ(After(9000, {{"n1", Answer(true, -1, 6000)}}).liveness, Liveness::kLost)
      << "an answer is good for one lease";
  EXPECT_EQ(After(9000, {{"n1", Answer(false, 2400, 8500)}}).liveness, Liveness::kLost);
  EXPECT_EQ(After(3000, {{"n1", Answer(false, -1, 2900)}}).liveness, Liveness::kLost);
  ProbeAnswer none;
  none.reachable = true;
  none.at_mono_ns = kBeat + 2900 * kNsPerMs;
  EXPECT_EQ(After(3000, {{"n1", none}}).liveness, Liveness::kLost);
}

TEST(MassLoss, MoreThanTwoOrATenthInAMinuteIsHeld) {
  MassLossGuard guard;
  const int64_t t = 100 * kNsPerSec;
  EXPECT_FALSE(guard.WouldHold("a", 10, t));
  guard.NoteLoss("a", t);
  guard.NoteLoss("b", t + kNsPerSec);
  EXPECT_TRUE(guard.WouldHold("c", 10, t + 2 * kNsPerSec));
  EXPECT_FALSE(guard.WouldHold("a", 10, t + 2 * kNsPerSec))
      << "a node that was counted is not another one";
  EXPECT_FALSE(guard.WouldHold("c", 40, t + 2 * kNsPerSec)) << "3 of 40 is less than a tenth";
  EXPECT_FALSE(guard.WouldHold("c", 10, t + 61 * kNsPerSec));
}

TEST(Fence, CommitReleasesAtOnceAndProofAlways) {
  EXPECT_TRUE(JudgeFence({.mode = v1::FENCE_MODE_COMMIT}).released);
  EXPECT_TRUE(JudgeFence({.mode = v1::FENCE_MODE_WITNESS, .proof = true}).released);
}

TEST(Fence, WithoutWitnessesOnlyProof) {
  const FenceVerdict v = JudgeFence({.mode = v1::FENCE_MODE_WITNESS});
  EXPECT_FALSE(v.released);
  EXPECT_THAT(v.reason, HasSubstr("no witnesses"));
}

TEST(Fence, MoreThanHalfOfTheWitnessesForFenceAndMargin) {
  FenceInput in;
  in.mode = v1::FENCE_MODE_WITNESS;
  in.witnesses = {"a", "b", "c", "d"};
  const int64_t since = 50 * kNsPerSec;
  const auto silent = [&](int64_t since_ns, int64_t answered_ns) {
    return WitnessWord{.alive = false, .not_heard_since_ns = since_ns, .answered_ns = answered_ns};
  };
  const int64_t full = since + 35 * kNsPerSec;
  in.words["a"] = silent(since, full);
  in.words["b"] = silent(since, full + kNsPerSec);
  EXPECT_FALSE(JudgeFence(in).released) << "two of four are not more than half";
  in.words["c"] = silent(since + 1, full);
  EXPECT_FALSE(JudgeFence(in).released);
  in.words["c"] = silent(since + 1, full + 1);
  EXPECT_TRUE(JudgeFence(in).released);
  in.words["c"].alive = true;
  EXPECT_FALSE(JudgeFence(in).released);
  in.words["d"] = silent(-1, full);
  EXPECT_FALSE(JudgeFence(in).released) << "a witness that cannot be reached says nothing";
  EXPECT_THAT(JudgeFence(in).reason, HasSubstr("1 could not be asked"));
  in.fence_ms = 1000;
  in.words["c"] = silent(since, full);
  EXPECT_TRUE(JudgeFence(in).released);
}

// A witness that has not been reached for an hour may hear the node again: its old word proves the
// silence until then, not since.
TEST(Fence, AnOldWordDoesNotRipenIntoProof) {
  FenceInput in;
  in.mode = v1::FENCE_MODE_WITNESS;
  in.witnesses = {"a"};
  in.words["a"] = {.alive = false, .not_heard_since_ns = 0, .answered_ns = kNsPerSec};
  EXPECT_FALSE(JudgeFence(in).released);
}

}  // namespace
}  // namespace holdfast::sched
