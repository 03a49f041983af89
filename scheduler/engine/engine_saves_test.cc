// SPDX-License-Identifier: Apache-2.0
// Saves, stops and stale words in whole lives of jobs on a fake cluster. The invariants of
// fake_cluster.h are checked after every turn of every test.
#include <csignal>
#include <set>

#include "base/rank/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/core/start_point.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/testing/engine_words.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// saves

TEST(EngineSave, AWholeSetOfAnOldAttemptIsCommittedBeforeTheNextStartsAHalfOneIsAborted) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  c.Finish(job, 10, true, true);
  const Point half{1, 10};
  for (uint32_t rank = 0; rank < 3; ++rank)
    c.PrepareRank(job, half, rank, FakeManifest(job, half, rank, 4));
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.Job(job).saves_aborted(), 1u);
  EXPECT_GE(c.node("n0").aborts_seen[half], 1);
  c.PrepareRank(job, half, 3, FakeManifest(job, half, 3, 4));  // late
  c.Advance(5000);
  EXPECT_EQ(c.Job(job).saves_committed(), 1u);
  EXPECT_EQ(c.Job(job).newest_checkpoint().step(), 5u);
  EXPECT_GE(c.node("n1").aborts_seen[half], 1);
  EXPECT_TRUE(c.node("n1").jobs.at(job).prepared.empty()) << "the late save was not answered";
}

// One rank's part will never come (its buffer was used again while no agent was there).
TEST(EngineSave, ASetThatCanNeverBeWholeIsAbortedByANewerCommit) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  for (uint64_t step = 1; step <= 40; ++step) {
    c.Finish(job, step, true, true);
    if (step % 2 == 0) {
      c.Prepare(job, step);
    } else {
      c.PrepareRank(job, {1, step}, 0, FakeManifest(job, {1, step}, 0, 4));
    }
  }
  EXPECT_EQ(c.Job(job).saves_committed(), 20u);
  EXPECT_EQ(c.Job(job).saves_aborted(), 20u);
  EXPECT_EQ(c.Job(job).incidents_size(), 0);
}

TEST(EngineSave, ALateSetIsCommittedWhileTheOldAttemptIsStillBeingStopped) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 10, true, true);
  const Point point{1, 10};
  for (uint32_t rank = 0; rank < 3; ++rank)
    c.PrepareRank(job, point, rank, FakeManifest(job, point, rank, 4));
  c.node("n1").obey_stops = false;
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  ASSERT_EQ(c.StateOf(job), kRecovering);
  c.PrepareRank(job, point, 3, FakeManifest(job, point, 3, 4));
  c.node("n1").obey_stops = true;
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).saves_committed(), 1u);
  EXPECT_EQ(c.Job(job).saves_aborted(), 0u);
}

TEST(EngineSave, DisagreeingReplicasAbortTheSaveAndAreAnIncident) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  const Point point{1, 5};
  for (uint32_t rank = 0; rank < 4; ++rank)
    c.PrepareRank(job, point, rank, FakeManifest(job, point, rank, 4, rank == 2 ? 8 : 7));
  c.Pump();
  EXPECT_EQ(c.Job(job).saves_committed(), 0u);
  EXPECT_EQ(c.Job(job).saves_aborted(), 1u);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::SILENT_CORRUPTION);
  EXPECT_EQ(c.StateOf(job), kRunning) << "the save is lost, not the job";
}

TEST(EngineSave, AFailedSaveIsStorageAndTrainingGoesOn) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.PrepareRank(job, {1, 5}, 0, "", "write /store/x: No space left on device");
  c.Pump();
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::STORAGE);
  EXPECT_THAT(c.LastIncident(job).what(), HasSubstr("No space left"));
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  EXPECT_GE((c.node("n0").aborts_seen[{1, 5}]), 1);
}

TEST(EngineSave, SavesThatFailOneAfterAnotherAreOneIncidentWithACount) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  for (uint64_t step = 5; step <= 25; step += 5) {
    c.Finish(job, step, true, true);
    c.PrepareRank(job, {1, step}, 0, "", "write /store/x: No space left on device");
    c.Pump();
  }
  ASSERT_EQ(c.Job(job).incidents_size(), 1);
  EXPECT_EQ(c.LastIncident(job).repeats(), 4u);
  EXPECT_THAT(c.LastIncident(job).what(), HasSubstr("step 25"));
  EXPECT_GT(c.LastIncident(job).newest_wall_ns(), 0);
  EXPECT_EQ(c.Job(job).saves_aborted(), 5u);
}

TEST(EngineSave, AnOrderForWhichThereWasNoRoomIsNotCountedAsSent) {
  Facts facts;
  v1::DesiredState sent;
  sent.add_jobs()->set_job(7);
  for (const uint64_t step : {5, 10}) {
    PendingOrder pending;
    pending.order.set_job(7);
    pending.order.set_attempt(1);
    pending.order.set_step(step);
    if (step == 5) *sent.mutable_jobs(0)->add_commits() = pending.order;
    facts.jobs[7].orders["n0"].emplace(Point{1, step}, pending);
  }
  NoteDesiredSent(facts, "n0", sent);
  const auto& orders = facts.jobs.at(7).orders.at("n0");
  EXPECT_TRUE(orders.at({1, 5}).delivered);
  EXPECT_FALSE(orders.at({1, 10}).delivered);
}

TEST(EngineSave, AStepFinishedBetweenAFaultAndTheStopIsCountedAsLost) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 4, true, false);
  for (const char* node : {"n0", "n1"}) c.node(node).obey_stops = false;
  c.Exit(job, 2, -SIGKILL);
  c.Pump();
  ASSERT_EQ(c.StateOf(job), v1::JOB_STATE_RECOVERING);
  c.node(c.NodeOf(job, 0)).jobs.at(job).ranks.at(0).step = 5;
  for (const char* node : {"n0", "n1"}) c.node(node).obey_stops = true;
  c.Pump();
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 4u);
  EXPECT_EQ(c.LastIncident(job).steps_lost(), 1u);
}

TEST(EngineSave, AManifestOfSomethingElseIsRefused) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.PrepareRank(job, {1, 5}, 0, FakeManifest(job, {1, 6}, 0, 4));
  c.Pump();
  EXPECT_EQ(c.Job(job).saves_aborted(), 1u);
  c.PrepareRank(job, {9, 7}, 0, FakeManifest(job, {9, 7}, 0, 4));  // an attempt that never was
  c.Pump();
  const auto checkpoints = c.engine().ListCheckpoints("train");
  EXPECT_EQ(checkpoints->checkpoints_size(), 1);
}

TEST(EngineSave, TheLastSaveThatNeverComesIsAFault) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.ExitAll(job, 0);
  ASSERT_EQ(c.StateOf(job), kCommitting);
  c.Advance(121'000);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 5u);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::STORAGE);
  EXPECT_EQ(c.LastIncident(job).ranks_size(), 0) << "no rank is to blame for a store";
  // The new attempt begins at the last step and has nothing to do: that alone does not make it
  // DONE.
  c.ExitAll(job, 0);
  EXPECT_EQ(c.StateOf(job), kCommitting);
}

TEST(EngineSave, SaveAndRestartFromAStep) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  v1::SaveJobRequest save;
  save.set_idempotency_key("save");
  save.set_job("train");
  ASSERT_TRUE(c.engine().SaveJob(save, c.now()).ok());
  ASSERT_TRUE(c.engine().SaveJob(save, c.now()).ok());
  EXPECT_EQ(c.engine().Desired("n0").jobs(0).save_requests(), 1u) << "the same key asks once";
  c.Finish(job, 10, true, true);
  v1::RestartJobRequest restart;
  restart.set_idempotency_key("r1");
  restart.set_job("train");
  restart.set_expected_attempt(9);
  EXPECT_EQ(c.engine().RestartJob(restart, c.now()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  restart.set_expected_attempt(1);
  restart.set_from_step(7);
  EXPECT_EQ(c.engine().RestartJob(restart, c.now()).status().code(), absl::StatusCode::kNotFound);
  restart.set_from_step(5);
  ASSERT_TRUE(c.engine().RestartJob(restart, c.now()).ok());
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.Job(job).start_point().source(), v1::StartPoint::SOURCE_SNAPSHOT)
      << "its memory still holds step 5";
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 5u);
  EXPECT_EQ(c.Job(job).incidents_size(), 0);
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 5u)
      << "the snapshot of step 10 is off the line now";
}

TEST(EngineSave, FromAnotherJobsCheckpoint) {
  FakeCluster c(4, 2);
  const uint64_t first = c.Submit(TrainerSpec());
  c.Finish(first, 5, true, true);
  c.Prepare(first, 5);
  v1::JobSpec spec = TrainerSpec();
  spec.set_from("j-1@6");
  v1::SubmitJobRequest bad;
  bad.set_idempotency_key("bad");
  *bad.mutable_spec() = spec;
  EXPECT_EQ(c.engine().SubmitJob(bad, c.now()).status().code(), absl::StatusCode::kNotFound);
  spec.set_from("j-1@5");
  const uint64_t second = c.Submit(spec);
  EXPECT_EQ(c.Job(second).start_point().ref().job(), first);
  c.Exit(second, 0, -SIGKILL);
  c.Pump();
  EXPECT_EQ(c.Job(second).attempt(), 2u);
  EXPECT_EQ(c.Job(second).start_point().ref().job(), first) << "the root stays where the job began";
}

// What does not verify is never started from again; the job goes back until nothing is left, and
// never begins anew by itself.
TEST(EngineSave, ADamagedStartPointIsLeftOutUntilNoneIsLeft) {
  FakeCluster c;
  v1::JobSpec spec = TrainerSpec();
  spec.set_restarts_max(100);
  const uint64_t job = c.Submit(spec);
  for (const uint64_t step : {5, 10}) {
    c.Finish(job, step, true, true);
    c.Prepare(job, step);
  }
  c.Finish(job, 12, true, false);
  c.Exit(job, 1, -SIGKILL);
  std::vector<std::string> starts;
  for (int i = 0; i < 10 && c.StateOf(job) != kFailed; ++i) {
    c.Advance(120'000);
    ASSERT_EQ(c.StateOf(job), kRunning) << c.Trace();
    starts.push_back(DescribeStart(c.Job(job).start_point()));
    c.Exit(job, 0, rank::kExitCorrupt, "tensor 'w' at offset 64 does not match");
    c.Pump();
    EXPECT_EQ(c.LastIncident(job).fault_class(), v1::CORRUPT_CHECKPOINT) << c.Trace();
    EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(0));
  }
  EXPECT_THAT(starts, Contains(HasSubstr("snapshot of step 12")));
  EXPECT_THAT(starts, Contains(HasSubstr("checkpoint j-1@10")));
  EXPECT_THAT(starts.back(), HasSubstr("checkpoint j-1@5"));
  EXPECT_EQ(std::set<std::string>(starts.begin(), starts.end()).size(), starts.size());
  EXPECT_EQ(c.StateOf(job), kFailed);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("offset 64"));
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("no undamaged snapshot or checkpoint"));
}

TEST(EngineSave, ADamagedCheckpointOfAnotherJobEndsTheJobThatWasToStartFromIt) {
  FakeCluster c(4, 2);
  const uint64_t first = c.Submit(TrainerSpec());
  c.Finish(first, 5, true, true);
  c.Prepare(first, 5);
  v1::JobSpec spec = TrainerSpec();
  spec.set_from("j-1@5");
  const uint64_t second = c.Submit(spec);
  c.Exit(second, 0, rank::kExitCorrupt);
  c.Pump();
  EXPECT_EQ(c.StateOf(second), kFailed);
  EXPECT_THAT(c.Job(second).reason(), HasSubstr("--from an older checkpoint"));
}

// stops

TEST(EngineStop, CancelInEveryState) {
  {
    FakeCluster c;
    const uint64_t job = c.Submit(CommandSpec(2, 8));
    ASSERT_EQ(c.StateOf(job), kQueued);
    ASSERT_TRUE(c.Cancel(job).ok());
    EXPECT_EQ(c.StateOf(job), kCancelled);
    EXPECT_TRUE(c.Cancel(job).ok()) << "cancelling twice is no error";
  }
  {
    FakeCluster c;
    c.node("n0").start_ranks = false;
    const uint64_t job = c.Submit(CommandSpec());
    ASSERT_EQ(c.StateOf(job), kStarting);
    ASSERT_TRUE(c.Cancel(job).ok());
    EXPECT_EQ(c.StateOf(job), kCancelled);
  }
  {
    FakeCluster c;
    const uint64_t job = c.Submit(CommandSpec());
    c.node("n1").obey_stops = false;
    ASSERT_TRUE(c.Cancel(job).ok());
    EXPECT_EQ(c.StateOf(job), kStopping);
    EXPECT_THAT(c.Job(job).reason(), HasSubstr("n1 to stop"));
    EXPECT_THAT(c.node("n0").orders_seen[job],
                Contains(std::make_pair(v1::DESIRED_PHASE_STOP, v1::STOP_KIND_TERM)));
    c.node("n1").obey_stops = true;
    c.node("n1").KillAllRanks(c.now().mono_ns);
    c.Advance(1500);
    EXPECT_EQ(c.StateOf(job), kCancelled);
    EXPECT_EQ(c.Job(job).attempt(), 1u) << "a cancel raises no attempt";
  }
  {
    FakeCluster c;
    const uint64_t job = c.Submit(TrainerSpec());
    c.node("n1").obey_stops = false;
    c.Exit(job, 0, -SIGKILL);
    c.Pump();
    ASSERT_EQ(c.StateOf(job), kRecovering);
    ASSERT_TRUE(c.Cancel(job).ok());
    EXPECT_EQ(c.StateOf(job), kStopping);
    c.node("n1").obey_stops = true;
    c.node("n1").KillAllRanks(c.now().mono_ns);
    c.Advance(1500);
    EXPECT_EQ(c.StateOf(job), kCancelled);
  }
  {
    FakeCluster c;
    const uint64_t job = c.Submit(TrainerSpec());
    c.Finish(job, 5, true, true);
    c.ExitAll(job, 0);
    ASSERT_EQ(c.StateOf(job), kCommitting);
    ASSERT_TRUE(c.Cancel(job).ok());
    c.Advance(1000);
    EXPECT_EQ(c.StateOf(job), kCancelled);
  }
  {
    FakeCluster c;
    const uint64_t job = c.Submit(CommandSpec());
    c.ExitAll(job, 0);
    ASSERT_EQ(c.StateOf(job), kDone);
    EXPECT_EQ(c.Cancel(job).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(EngineStop, CancelDoesNotWaitForALostNodeButItsDevicesStayHeld) {
  FakeCluster c;
  const uint64_t job = c.Submit(CommandSpec());
  c.LoseNode("n1", false);
  c.Advance(4000);
  ASSERT_TRUE(c.Cancel(job).ok());
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(job), kCancelled);
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 0u);
  c.node("n1").up = true;
  c.Advance(2000);
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 2u);
  EXPECT_TRUE(c.node("n1").jobs.empty());
}

TEST(EngineStop, TimeLimitIsGracefulAndFails) {
  FakeCluster c;
  v1::JobSpec spec = TrainerSpec();
  spec.set_time_limit_s(60);
  const uint64_t job = c.Submit(spec);
  c.Finish(job, 1, true, false);
  c.Advance(59'000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  c.RestartScheduler();
  c.Advance(2'000);
  EXPECT_EQ(c.StateOf(job), kFailed);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("time limit of 60 s"));
  EXPECT_THAT(c.node("n0").orders_seen[job],
              Contains(std::make_pair(v1::DESIRED_PHASE_STOP, v1::STOP_KIND_GRACEFUL)));
}

// stale words

TEST(EngineStale, ReportsOfOlderAttemptsChangeNothing) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  v1::ReportEventsRequest old = c.node("n0").Request();
  c.Exit(job, 2, -SIGKILL);
  *old.add_events() = c.node("n0").Event(v1::RankEvent::KIND_EXITED, job, 0, c.now().mono_ns);
  old.mutable_events(0)->mutable_rank()->set_phase(v1::RANK_PHASE_EXITED);
  old.mutable_events(0)->mutable_rank()->set_exit_code(-9);
  auto* stopped = old.add_events();
  stopped->set_kind(v1::RankEvent::KIND_STOP_COMPLETE);
  stopped->mutable_rank()->set_job(job);
  stopped->mutable_rank()->set_attempt(1);
  c.Pump();
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  c.Report(c.node("n0"), old);
  c.Pump();
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.StateOf(job), kRunning);
  v1::ReportEventsRequest foreign = c.node("n0").Request();
  foreign.set_agent_epoch(99);
  EXPECT_EQ(c.engine().ReportEvents(foreign, c.now()).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(EngineStale, AnOvertakenBeatDoesNotMakeRanksVanish) {
  FakeCluster c;
  const v1::BeatRequest before = c.node("n0").Beat(c.now().mono_ns);
  const uint64_t job = c.Submit(TrainerSpec());
  ASSERT_TRUE(c.engine().Beat(before, c.now()).ok());
  ASSERT_TRUE(c.engine().Beat(before, c.now()).ok());
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
}

}  // namespace
}  // namespace holdfast::sched
