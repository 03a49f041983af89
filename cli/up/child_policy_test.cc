// SPDX-License-Identifier: Apache-2.0
#include "cli/up/child_policy.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kMs = kNsPerMs;

class ChildPolicyTest : public testing::Test {
 protected:
  ChildAction At(int64_t ms, bool held = false) { return policy_.Decide(ms * kMs, held); }
  void StartReady(int64_t ms) {
    policy_.Started(ms * kMs);
    policy_.Ready(ms * kMs);
  }
  ChildPolicy policy_;
};

TEST_F(ChildPolicyTest, StartsAtOnceAndRestartsAfter100Ms) {
  EXPECT_EQ(At(0).kind, ChildAction::kStart);
  StartReady(0);
  policy_.Heard(5000 * kMs);
  policy_.Exited(5000 * kMs, -9);
  EXPECT_EQ(At(5000).kind, ChildAction::kNone);
  EXPECT_EQ(At(5000).wake_ns, 5100 * kMs);
  EXPECT_EQ(At(5099).kind, ChildAction::kNone);
  EXPECT_EQ(At(5100).kind, ChildAction::kStart);
}

TEST_F(ChildPolicyTest, ARestartStormSlowsDownToItsLimitAndALongLifeEndsIt) {
  int64_t now = 0;
  int64_t pauses[10];
  for (int64_t& pause : pauses) {
    StartReady(now);
    now += 10;
    policy_.Exited(now * kMs, 1);
    pause = At(now).wake_ns / kMs - now;
    now += pause;
    ASSERT_EQ(At(now).kind, ChildAction::kStart);
  }
  EXPECT_EQ(pauses[0], 100);
  EXPECT_EQ(pauses[1], 200);
  EXPECT_EQ(pauses[2], 400);
  EXPECT_EQ(pauses[9], kRestartMsMax);
  StartReady(now);
  now += kShortLifeMs;
  policy_.Exited(now * kMs, 1);
  EXPECT_EQ(At(now).wake_ns / kMs - now, kRestartMs);
}

TEST_F(ChildPolicyTest, WhatNeverComesUpIsGivenUpButNotWhatOnceDid) {
  int64_t now = 0;
  for (int i = 0; i < kHopelessStarts; ++i) {
    ASSERT_EQ(At(now).kind, ChildAction::kStart) << i;
    policy_.Started(now * kMs);
    now += 10;
    policy_.Exited(now * kMs, 1);
    now += kRestartMsMax;
  }
  EXPECT_EQ(At(now).kind, ChildAction::kGiveUp);
  EXPECT_EQ(At(now).reason, "ended 5 times before it was ready (exit code 1)");
}

TEST_F(ChildPolicyTest, SilenceKillsOnceAndOnlyWhenReady) {
  policy_.Started(0);
  EXPECT_EQ(At(kReadyMs - 1).kind, ChildAction::kNone);
  policy_.Ready(kMs);
  policy_.Heard(500 * kMs);
  EXPECT_EQ(At(1499).kind, ChildAction::kNone);
  EXPECT_EQ(At(1499).wake_ns, 1500 * kMs);
  const ChildAction action = At(1500);
  EXPECT_EQ(action.kind, ChildAction::kKill);
  EXPECT_EQ(action.reason, "silent for 1000 ms");
  EXPECT_EQ(At(1501).kind, ChildAction::kNone) << "one SIGKILL is enough";
  policy_.Exited(1510 * kMs, -9);
  EXPECT_EQ(At(1610).kind, ChildAction::kStart);
}

TEST_F(ChildPolicyTest, NeverReadyIsKilledAfterItsTime) {
  policy_.Started(0);
  EXPECT_EQ(At(kReadyMs).kind, ChildAction::kKill);
}

TEST_F(ChildPolicyTest, AStopLongerThanItsLimitKills) {
  StartReady(0);
  policy_.Stopped(100 * kMs);
  EXPECT_EQ(At(1099).kind, ChildAction::kNone);
  const ChildAction action = At(1100);
  EXPECT_EQ(action.kind, ChildAction::kKill);
  EXPECT_EQ(action.reason, "stopped for 1000 ms");
}

TEST_F(ChildPolicyTest, AShortStopIsForgottenAndItsSilenceToo) {
  StartReady(0);
  policy_.Stopped(100 * kMs);
  policy_.Continued(900 * kMs);
  EXPECT_EQ(At(1800).kind, ChildAction::kNone);
  EXPECT_EQ(At(1900).kind, ChildAction::kKill);
}

TEST_F(ChildPolicyTest, OurOwnPauseIsNotTheirSilence) {
  StartReady(0);
  policy_.Shift(3000 * kMs);
  EXPECT_EQ(At(3500).kind, ChildAction::kNone);
  EXPECT_EQ(At(4000).kind, ChildAction::kKill);
}

TEST_F(ChildPolicyTest, RefusalAtTheFirstStartGivesUp) {
  for (const int code : {kExitBadArguments, kExitLockHeld}) {
    ChildPolicy policy;
    policy.Started(0);
    policy.Exited(10 * kMs, code);
    EXPECT_EQ(policy.Decide(10 * kMs, false).kind, ChildAction::kGiveUp) << code;
  }
  ChildPolicy crashed;
  crashed.Started(0);
  crashed.Exited(10 * kMs, 1);
  EXPECT_EQ(crashed.Decide(200 * kMs, false).kind, ChildAction::kStart);
}

TEST_F(ChildPolicyTest, TheSameCodesLaterAreOrdinaryDeaths) {
  StartReady(0);
  policy_.Exited(5000 * kMs, kExitLockHeld);
  EXPECT_EQ(At(5100).kind, ChildAction::kStart);
}

TEST_F(ChildPolicyTest, AHeldChildStaysDown) {
  StartReady(0);
  policy_.Exited(2000 * kMs, -9);
  EXPECT_EQ(At(60'000, /*held=*/true).kind, ChildAction::kNone);
  EXPECT_EQ(At(60'000, /*held=*/false).kind, ChildAction::kStart);
}

TEST_F(ChildPolicyTest, StopIsTermThenKillThenNothing) {
  StartReady(0);
  policy_.Stop(100 * kMs);
  EXPECT_EQ(At(100).kind, ChildAction::kTerm);
  EXPECT_EQ(At(101).kind, ChildAction::kNone);
  EXPECT_EQ(At(100 + kTermMs).kind, ChildAction::kKill);
  policy_.Exited((110 + kTermMs) * kMs, -9);
  EXPECT_EQ(At(100'000).kind, ChildAction::kNone) << "what was stopped is not started again";
}

}  // namespace
}  // namespace holdfast::cli
