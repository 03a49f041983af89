// SPDX-License-Identifier: Apache-2.0
#include "agent/core/reconcile.h"

#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {

std::vector<Action::Kind> Kinds(const std::vector<Action>& actions) {
  std::vector<Action::Kind> kinds;
  for (const Action& action : actions) kinds.push_back(action.kind);
  return kinds;
}

using Kindly = std::vector<Action::Kind>;

WantedJob RunOf(uint64_t attempt) { return {1, attempt, WantedJob::kRun, StopKind::kKill, 0, 2}; }
WantedJob Stop(uint64_t attempt, StopKind kind) {
  return {1, attempt, WantedJob::kStop, kind, 5, 2};
}
WantedJob Forget(uint64_t attempt) {
  return {1, attempt, WantedJob::kForget, StopKind::kKill, 0, 0};
}

ObservedJob Nothing() { return {.job = 1, .known = true}; }
ObservedJob Running(uint64_t attempt) {
  return {.job = 1,
          .known = true,
          .fence_attempt = attempt,
          .started_attempt = attempt,
          .ranks_alive = 2,
          .keeper_attached = true};
}

TEST(Reconcile, StartsAKeeperThenRanks) {
  EXPECT_EQ(Kinds(Reconcile(RunOf(1), Nothing(), 0)),
            (Kindly{Action::kRaiseFence, Action::kStartKeeper}));
  ObservedJob with_keeper = Nothing();
  with_keeper.fence_attempt = 1;
  with_keeper.keeper_busy = true;
  EXPECT_TRUE(Reconcile(RunOf(1), with_keeper, 0).empty())
      << "a keeper that comes up is waited for";
  with_keeper.keeper_busy = false;
  with_keeper.keeper_attached = true;
  EXPECT_EQ(Kinds(Reconcile(RunOf(1), with_keeper, 0)), Kindly{Action::kStartRanks});
}

TEST(Reconcile, RanksWaitUntilItIsKnownWhereTheyMeetButTheKeeperDoesNot) {
  WantedJob wanted = RunOf(1);
  wanted.waits_for_master = true;
  EXPECT_EQ(Kinds(Reconcile(wanted, Nothing(), 0)),
            (Kindly{Action::kRaiseFence, Action::kStartKeeper}));
  ObservedJob with_keeper = Nothing();
  with_keeper.fence_attempt = 1;
  with_keeper.keeper_attached = true;
  EXPECT_TRUE(Reconcile(wanted, with_keeper, 0).empty());
  wanted.waits_for_master = false;
  EXPECT_EQ(Kinds(Reconcile(wanted, with_keeper, 0)), Kindly{Action::kStartRanks});
}

TEST(Reconcile, WaitsForTheBackOffOfAFailedKeeper) {
  ObservedJob observed = Nothing();
  observed.fence_attempt = 1;
  observed.keeper_retry_ns = 100;
  EXPECT_TRUE(Reconcile(RunOf(1), observed, 99).empty());
  EXPECT_EQ(Kinds(Reconcile(RunOf(1), observed, 100)), Kindly{Action::kStartKeeper});
}

TEST(Reconcile, AnAttemptIsStartedOnce) {
  EXPECT_TRUE(Reconcile(RunOf(3), Running(3), 0).empty());
  ObservedJob ended = Running(3);
  ended.ranks_alive = 0;
  EXPECT_TRUE(Reconcile(RunOf(3), ended, 0).empty())
      << "ended ranks are not started again in the same attempt";
  ended.keeper_attached = false;
  EXPECT_TRUE(Reconcile(RunOf(3), ended, 0).empty()) << "nor after the keeper died";
}

TEST(Reconcile, ANewerAttemptFencesAndKillsTheOlderOne) {
  const std::vector<Action> actions = Reconcile(RunOf(4), Running(3), 0);
  ASSERT_EQ(Kinds(actions), (Kindly{Action::kRaiseFence, Action::kStopRanks}));
  EXPECT_EQ(actions[0].attempt, 4u);
  EXPECT_EQ(actions[1].stop, StopKind::kKill);
}

TEST(Reconcile, ALateOrderOfAnOlderAttemptDoesNothing) {
  EXPECT_TRUE(Reconcile(Stop(2, StopKind::kKill), Running(3), 0).empty());
  EXPECT_TRUE(Reconcile(RunOf(2), Running(3), 0).empty());
}

TEST(Reconcile, StopRunsTheOrderedLadderThenReportsOnce) {
  std::vector<Action> actions = Reconcile(Stop(3, StopKind::kGraceful), Running(3), 0);
  ASSERT_EQ(Kinds(actions), Kindly{Action::kStopRanks});
  EXPECT_EQ(actions[0].stop, StopKind::kGraceful);
  EXPECT_EQ(actions[0].grace_ns, 5);
  ObservedJob gone = Running(3);
  gone.ranks_alive = 0;
  gone.left_behind = true;
  EXPECT_EQ(Kinds(Reconcile(Stop(3, StopKind::kTerm), gone, 0)), Kindly{Action::kKillLeftBehind});
  gone.left_behind = false;
  actions = Reconcile(Stop(3, StopKind::kTerm), gone, 0);
  ASSERT_EQ(Kinds(actions), Kindly{Action::kReportStopped});
  EXPECT_EQ(actions[0].attempt, 3u);
  gone.stop_reported = 3;
  EXPECT_TRUE(Reconcile(Stop(3, StopKind::kTerm), gone, 0).empty());
}

TEST(Reconcile, ANodeThatNeverRanTheJobAnswersAStopAtOnce) {
  EXPECT_EQ(Kinds(Reconcile(Stop(5, StopKind::kKill), Nothing(), 0)),
            (Kindly{Action::kRaiseFence, Action::kReportStopped}));
}

TEST(Reconcile, AStopWaitsForRanksThatAreBeingStartedAndForABurial) {
  ObservedJob observed = Running(3);
  observed.ranks_alive = 0;
  observed.starting = true;
  EXPECT_EQ(Kinds(Reconcile(Stop(4, StopKind::kKill), observed, 0)),
            (Kindly{Action::kRaiseFence, Action::kStopRanks}));
  observed.starting = false;
  observed.keeper_busy = true;
  EXPECT_EQ(Kinds(Reconcile(Stop(4, StopKind::kKill), observed, 0)), Kindly{Action::kRaiseFence});
}

TEST(Reconcile, ForgetStopsFirst) {
  EXPECT_EQ(Kinds(Reconcile(Forget(3), Running(3), 0)), Kindly{Action::kStopRanks});
  ObservedJob gone = Running(3);
  gone.ranks_alive = 0;
  EXPECT_EQ(Kinds(Reconcile(Forget(3), gone, 0)), Kindly{Action::kForget});
  EXPECT_TRUE(Reconcile(Forget(3), {.job = 1, .known = false, .fence_attempt = 3}, 0).empty());
}

TEST(Reconcile, RunWithoutARankHereIsNothingToDo) {
  WantedJob elsewhere = RunOf(1);
  elsewhere.local_ranks = 0;
  EXPECT_EQ(Kinds(Reconcile(elsewhere, Nothing(), 0)), Kindly{Action::kRaiseFence});
}

}  // namespace
}  // namespace holdfast::agent
