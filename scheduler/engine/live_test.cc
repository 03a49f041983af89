// SPDX-License-Identifier: Apache-2.0
// Causes found while ranks live: observed or acted on, and what the ledger says of them afterwards.
#include "scheduler/engine/live.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/core/live_causes.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kCostMs = kUnseenWorkMsMin + kRestartMsDefault;  // of a job that began just now

class LiveTest : public ::testing::Test {
 protected:
  LiveTest() { cluster_.node("n0").hello = cluster_.node("n1").hello = false; }

  uint64_t Submit(const std::string& hang, const std::string& stopped = "observe") {
    v1::JobSpec spec = CommandSpec();
    const auto modes = proto::ParseModes(absl::StrCat("hang=", hang, ",stopped=", stopped));
    spec.mutable_modes()->insert(modes->begin(), modes->end());
    const uint64_t job = cluster_.Submit(spec);
    cluster_.Advance(1'000);
    return job;
  }

  FakeRank& Rank(uint64_t job, uint32_t rank) {
    return cluster_.node(cluster_.NodeOf(job, rank)).jobs.at(job).ranks.at(rank);
  }

  // From now on its agent says so, as if it had just passed its limit of 3 s.
  void Hang(uint64_t job, uint32_t rank,
            v1::Quiet::WaitsFor waits_for = v1::Quiet::WAITS_FOR_DATA) {
    v1::Quiet quiet;
    quiet.set_signal("work");
    quiet.set_lasted_ms(3'000);
    quiet.set_limit_ms(3'000);
    quiet.set_pauses_seen(50);
    quiet.set_confidence(0.98);
    quiet.set_waits_for(waits_for);
    quiet.set_what("waits for its child 7 (python), which waits in read of /data (descriptor 3)");
    Rank(job, rank).quiet = quiet;
  }

  // Time passes, and the hang with it.
  void Last(uint64_t job, uint32_t rank, int64_t ms) {
    for (int64_t done = 0; done < ms; done += 500) {
      FakeRank& hung = Rank(job, rank);
      if (hung.quiet.has_value()) hung.quiet->set_lasted_ms(hung.quiet->lasted_ms() + 500);
      cluster_.Advance(500);
    }
  }

  std::vector<v1::LedgerEntry> Ledger() {
    const auto response = cluster_.engine().ListLedger({});
    return {response->entries().begin(), response->entries().end()};
  }

  FakeCluster cluster_;
};

TEST_F(LiveTest, AnObservedHangIsNamedWithItsCostAndNothingIsDone) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, 2'000);
  ASSERT_EQ(Ledger().size(), 1u);
  const v1::LedgerEntry entry = Ledger()[0];
  EXPECT_EQ(entry.cause(), "hang");
  EXPECT_EQ(entry.fault_class(), v1::DATA_STUCK);
  EXPECT_THAT(entry.ranks(), ElementsAre(1));
  EXPECT_THAT(entry.what(), HasSubstr("rank 1 on n0 waits for its child 7 (python)"));
  EXPECT_EQ(entry.mode(), v1::CAUSE_MODE_OBSERVE);
  EXPECT_EQ(entry.cost_ms(), kCostMs);
  EXPECT_EQ(entry.outcome(), v1::LedgerEntry::OUTCOME_OPEN);
  EXPECT_EQ(entry.due_ms(), 0);
  Last(job, 1, kCostMs);
  EXPECT_GE(Ledger()[0].due_ms(), kCostMs);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
  EXPECT_EQ(cluster_.Job(job).incidents_size(), 0);
  EXPECT_THAT(cluster_.EventKinds(job), Contains("ledger.due"));
}

TEST_F(LiveTest, ItWasWrongWhenTheRankGoesOnByItself) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, kCostMs + 2'000);
  Rank(job, 1).quiet.reset();
  cluster_.Advance(2'000);
  const v1::LedgerEntry entry = Ledger()[0];
  EXPECT_EQ(entry.outcome(), v1::LedgerEntry::OUTCOME_WENT_ON);
  EXPECT_GT(entry.due_ms(), 0);
  EXPECT_GE(entry.lasted_ms(), kCostMs);
  Hang(job, 1);
  Last(job, 1, 2'000);
  EXPECT_EQ(Ledger().size(), 2u) << "the next one is an entry of its own";
}

TEST_F(LiveTest, ItWasRightWhenTheAttemptEndsBeforeTheRankWentOn) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, kCostMs);
  ASSERT_TRUE(cluster_.Cancel(job).ok());
  cluster_.Pump();
  EXPECT_GE(Ledger()[0].due_ms(), kCostMs);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_ENDED);
  EXPECT_THAT(Ledger()[0].outcome_text(), HasSubstr("the job was stopped"));
}

TEST_F(LiveTest, WhereTheModeIsToActTheJobIsRecoveredOnceThatCostsLess) {
  const uint64_t job = Submit("act");
  Hang(job, 1);
  Last(job, 1, 5'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u) << "waiting costs less still";
  Last(job, 1, kCostMs);
  EXPECT_EQ(cluster_.Job(job).attempt(), 2u);
  const v1::Incident incident = cluster_.LastIncident(job);
  EXPECT_EQ(incident.fault_class(), v1::DATA_STUCK);
  EXPECT_THAT(incident.ranks(), ElementsAre(1));
  EXPECT_THAT(incident.what(), HasSubstr("/data (descriptor 3)"));
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_ACTED);
  EXPECT_EQ(cluster_.StateOf(job), v1::JOB_STATE_RUNNING);
}

TEST_F(LiveTest, WhatMayWaitForAPeerIsNoCause) {
  const uint64_t job = Submit("act");
  Hang(job, 0, v1::Quiet::WAITS_FOR_PEER);
  Hang(job, 1, v1::Quiet::WAITS_FOR_UNSPECIFIED);
  Last(job, 1, 10 * kCostMs);
  EXPECT_TRUE(Ledger().empty());
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
}

TEST_F(LiveTest, AnObservedStopIsNoFailureAndWhatItBecomesIsWrittenDown) {
  const uint64_t job = Submit("observe");
  cluster_.Stop(job, 1);
  cluster_.Advance(3'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
  ASSERT_EQ(Ledger().size(), 1u);
  EXPECT_EQ(Ledger()[0].fault_class(), v1::PROCESS_STOPPED);
  Rank(job, 1).phase = v1::RANK_PHASE_RUNNING;
  cluster_.Advance(2'000);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_WENT_ON);
}

TEST_F(LiveTest, AStoppedRankIsRecoveredAtOnceWhereThatIsTheMode) {
  const uint64_t job = Submit("observe", "act");
  cluster_.Stop(job, 1);
  cluster_.Advance(1'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 2u);
  ASSERT_EQ(Ledger().size(), 1u);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_ACTED);
  EXPECT_EQ(Ledger()[0].mode(), v1::CAUSE_MODE_ACT);
}

TEST_F(LiveTest, ASchedulerThatStartsAnewDoesNotTakeItsIgnoranceForAnEnd) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, 2'000);
  cluster_.RestartScheduler();
  cluster_.Advance(100);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_OPEN);
  Last(job, 1, 3'000);
  ASSERT_EQ(Ledger().size(), 1u);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_OPEN);
}

TEST_F(LiveTest, AnAgentThatStartsAnewDoesNotEither) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, kCostMs + 2'000);
  Rank(job, 1).quiet = v1::Quiet();  // it knows no past
  cluster_.Advance(5'000);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_OPEN);
  Rank(job, 1).quiet.reset();
  cluster_.Advance(2'000);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_WENT_ON);
}

TEST_F(LiveTest, ASleeperThatNobodyWaitsForAnyMoreHasNotGoneOn) {
  const uint64_t job = Submit("observe");
  Hang(job, 0, v1::Quiet::WAITS_FOR_PEER);
  Hang(job, 1, v1::Quiet::WAITS_FOR_TIME);
  Last(job, 1, 2'000);
  ASSERT_EQ(Ledger().size(), 1u);
  EXPECT_THAT(Ledger()[0].ranks(), ElementsAre(1));
  Rank(job, 0).quiet.reset();
  Last(job, 1, 2'000);
  EXPECT_EQ(Ledger()[0].outcome(), v1::LedgerEntry::OUTCOME_OPEN);
}

TEST_F(LiveTest, WhatWasSeenOfARankWhileItWasStoppedIsNoHangOnceItGoesOn) {
  const uint64_t job = Submit("act");
  cluster_.Stop(job, 1);
  Hang(job, 1, v1::Quiet::WAITS_FOR_STOPPED);
  Last(job, 1, 2 * kCostMs);
  Rank(job, 1).phase = v1::RANK_PHASE_RUNNING;
  cluster_.Advance(500);  // a level that was made of what was seen before
  Rank(job, 1).quiet.reset();
  cluster_.Advance(3'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
  ASSERT_EQ(Ledger().size(), 1u);
  EXPECT_EQ(Ledger()[0].cause(), "stopped");
}

TEST_F(LiveTest, ModesChangeWhileTheJobRuns) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, kCostMs + 2'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
  v1::SetModesRequest request;
  request.set_idempotency_key("m");
  request.set_job(absl::StrCat("j-", job));
  (*request.mutable_modes())["hang"] = v1::CAUSE_MODE_ACT;
  ASSERT_TRUE(cluster_.engine().SetModes(request, cluster_.now()).ok());
  Last(job, 1, 1'000);
  EXPECT_EQ(cluster_.Job(job).attempt(), 2u);
  (*request.mutable_modes())["slow"] = v1::CAUSE_MODE_ACT;
  request.set_idempotency_key("n");
  EXPECT_THAT(std::string(cluster_.engine().SetModes(request, cluster_.now()).status().message()),
              HasSubstr("slow"));
}

TEST_F(LiveTest, TheLedgerIsReadByJobAndTime) {
  const uint64_t job = Submit("observe");
  Hang(job, 1);
  Last(job, 1, 2'000);
  v1::ListLedgerRequest request;
  request.set_job(absl::StrCat("j-", job));
  EXPECT_EQ(cluster_.engine().ListLedger(request)->entries_size(), 1);
  request.set_since_wall_ns(cluster_.now().wall_ns);
  EXPECT_EQ(cluster_.engine().ListLedger(request)->entries_size(), 0);
  request.set_job("j-99");
  EXPECT_FALSE(cluster_.engine().ListLedger(request).ok());
}

}  // namespace
}  // namespace holdfast::sched
