// SPDX-License-Identifier: Apache-2.0
// Whole lives of jobs on a fake cluster. The invariants of fake_cluster.h are checked after every
// turn of every test.
#include "scheduler/engine/engine.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/testing/engine_words.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(EngineLife, ACommandRunsAndIsDone) {
  FakeCluster c;
  const uint64_t job = c.Submit(CommandSpec());
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  EXPECT_EQ(c.Job(job).start_point().source(), v1::StartPoint::SOURCE_SCRATCH);
  EXPECT_EQ(NodeView(c, "n0").devices_free(), 0u);
  c.ExitAll(job, 0);
  EXPECT_EQ(c.StateOf(job), kDone);
  c.Advance(2000);
  EXPECT_EQ(NodeView(c, "n0").devices_free(), 2u);
  EXPECT_TRUE(c.node("n0").jobs.empty()) << "the node was not told to forget the job";
  EXPECT_EQ(c.engine().Desired("n0").jobs_size(), 0);
  EXPECT_THAT(c.EventKinds(job),
              ElementsAre("job.submitted", "job.started", "job.running", "job.done"));
}

TEST(EngineLife, ATrainerIsDoneOnlyWithItsLastStepCommittedAndWritten) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  for (uint64_t step = 1; step <= 5; ++step) c.Finish(job, step, true, step == 5);
  EXPECT_EQ(c.Job(job).newest_snapshot().step(), 5u);
  EXPECT_EQ(c.Job(job).step(), 5u);
  c.ExitAll(job, 0);
  EXPECT_EQ(c.StateOf(job), kCommitting);
  c.Prepare(job, 5);
  EXPECT_EQ(c.Job(job).newest_checkpoint().step(), 5u);
  EXPECT_EQ(c.StateOf(job), kCommitting) << "no store has the commit record yet";
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(job), kDone);
  EXPECT_EQ(c.Job(job).saves_committed(), 1u);
  EXPECT_GE((c.node("n1").commits_seen[{1, 5}]), 1);
  c.Advance(2000);
  EXPECT_TRUE(c.node("n1").jobs.empty());
  const auto checkpoints = c.engine().ListCheckpoints("train");
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_EQ(checkpoints->checkpoints_size(), 1);
  EXPECT_EQ(checkpoints->checkpoints(0).state(), "committed");
}

TEST(EngineLife, MoreThanThereIsWaitsAndSaysWhy) {
  FakeCluster c;
  const uint64_t big = c.Submit(CommandSpec(2, 8));
  EXPECT_EQ(c.StateOf(big), kQueued);
  EXPECT_THAT(c.Job(big).reason(), HasSubstr("needs 2 node(s) x 8 GPU(s); n0 has 2 of 2 free, n1 "
                                             "has 2 of 2 free; now fits: 2 node(s) x 2"));
  const uint64_t small = c.Submit(CommandSpec(1, 1));
  EXPECT_EQ(c.StateOf(small), kRunning) << "a job that can never fit blocks nobody";
  const uint64_t medium = c.Submit(CommandSpec(2, 2));
  EXPECT_EQ(c.StateOf(medium), kQueued);
  const uint64_t behind = c.Submit(CommandSpec(1, 1));
  EXPECT_EQ(c.StateOf(behind), kQueued) << "it would starve the gang in front of it";
  EXPECT_THAT(c.Job(behind).reason(), HasSubstr("waits behind j-3"));
  c.ExitAll(small, 0);
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(medium), kRunning);
}

TEST(EngineLife, SubmitIsIdempotentAcrossARestart) {
  FakeCluster c;
  const uint64_t first = c.Submit(CommandSpec(), "same-key");
  EXPECT_EQ(c.Submit(CommandSpec(), "same-key"), first);
  c.RestartScheduler();
  EXPECT_EQ(c.Submit(CommandSpec(), "same-key"), first);
  EXPECT_NE(c.Submit(CommandSpec(), "other-key"), first);
  v1::CancelJobRequest wrong;
  wrong.set_idempotency_key("same-key");
  wrong.set_job("j-1");
  EXPECT_EQ(c.engine().CancelJob(wrong, c.now()).status().code(),
            absl::StatusCode::kInvalidArgument);
  wrong.clear_idempotency_key();
  EXPECT_EQ(c.engine().CancelJob(wrong, c.now()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EngineLife, NamesResolveUnlessAmbiguous) {
  FakeCluster c(4, 2);
  const uint64_t a = c.Submit(CommandSpec());
  EXPECT_EQ(*c.engine().ResolveJob("cmd"), a);
  c.Submit(CommandSpec());
  const auto both = c.engine().ResolveJob("cmd");
  EXPECT_EQ(both.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("j-1, j-2"));
  c.ExitAll(a, 0);
  EXPECT_EQ(*c.engine().ResolveJob("cmd"), 2u) << "only one is live";
  EXPECT_EQ(c.engine().ResolveJob("j-99").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(c.engine().ResolveJob("nope").status().code(), absl::StatusCode::kNotFound);
}

// faults

TEST(EngineFault, AKilledRankIsRecoveredFromTheNewestSnapshotInMemory) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  for (uint64_t step = 1; step <= 7; ++step) c.Finish(job, step, true, false);
  c.Exit(job, 1, -SIGKILL);
  c.Exit(job, 2, 1);  // its peer's exception
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  const v1::JobStatus status = c.Job(job);
  EXPECT_EQ(status.attempt(), 2u);
  EXPECT_EQ(status.restarts(), 1u);
  EXPECT_EQ(status.start_point().source(), v1::StartPoint::SOURCE_SNAPSHOT);
  EXPECT_EQ(status.start_point().ref().step(), 7u);
  c.Advance(300);
  c.Finish(job, 8, true, false);
  const v1::Incident incident = c.LastIncident(job);
  EXPECT_EQ(incident.fault_class(), v1::PROCESS_DIED);
  EXPECT_THAT(incident.ranks(), ElementsAre(1));
  EXPECT_EQ(incident.rung(), 2u);
  EXPECT_EQ(incident.steps_lost(), 0u);
  EXPECT_TRUE(incident.closed());
  EXPECT_GE(incident.first_step_ms(), 300);
  EXPECT_THAT(c.EventKinds(job), Contains("incident.closed"));
}

TEST(EngineFault, TwoRanksWithinTheWindowAreOneIncident) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.node("n0").obey_stops = false;
  c.Exit(job, 0, -SIGSEGV);
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRecovering);
  EXPECT_EQ(c.Job(job).attempt(), 2u) << "the attempt is raised before anything of it starts";
  c.node("n0").obey_stops = true;
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.Job(job).incidents_size(), 1);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(0));
}

TEST(EngineFault, AStoppedRankIsKilledAndRecovered) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 2, true, false);
  c.Stop(job, 3);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::PROCESS_STOPPED);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(3));
}

TEST(EngineFault, DeathDuringTheNextStartIsAnIncidentOfItsOwn) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 4, true, false);
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  c.Exit(job, 3, -SIGKILL);
  c.Pump();
  EXPECT_EQ(c.Job(job).attempt(), 3u);
  EXPECT_EQ(c.Job(job).incidents_size(), 2);
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 4u);
  EXPECT_EQ(c.Job(job).start_point().ref().attempt(), 1u)
      << "the second attempt made nothing of its own";
  c.Finish(job, 5, true, false);
  EXPECT_TRUE(c.LastIncident(job).closed());
}

TEST(EngineLife, TheNodesOfACommandLearnWhereItsRanksMeet) {
  FakeCluster c;
  const uint64_t job = c.Submit(CommandSpec());
  const std::string first = c.NodeOf(job, 0), other = c.NodeOf(job, 2);
  const auto port = [&] { return c.engine().Desired(other).jobs(0).master_port(); };
  EXPECT_EQ(port(), 0u);
  c.node(first).jobs.at(job).master_port = 40001;
  c.Beat();
  EXPECT_EQ(port(), 40001u);
  c.Exit(job, 1, -SIGKILL);
  c.Pump();
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(port(), 0u) << "the port of a dead attempt";
  c.node(first).jobs.at(job).master_port = 40002;
  c.Beat();
  EXPECT_EQ(port(), 40002u);
}

TEST(EngineFault, EarlyExitZeroIsAFaultOnlyWithEvidence) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 4, true, false);
  c.Exit(job, 2, 0);  // its last mark was inside a step
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  c.Advance(2500);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::PROCESS_DIED);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(2));
}

TEST(EngineFault, ProgramsWithoutMarksMayEndOneByOne) {
  FakeCluster c;
  c.node("n0").hello = c.node("n1").hello = false;
  const uint64_t job = c.Submit(CommandSpec());
  for (uint32_t rank = 1; rank < 4; ++rank) c.Exit(job, rank, 0);
  c.Advance(60'000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  c.Exit(job, 0, 0);
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kDone);
}

TEST(EngineFault, WithoutMarksTooNoRankLeavesAJobThatOwesACheckpoint) {
  FakeCluster c;
  c.node("n0").hello = c.node("n1").hello = false;
  v1::JobSpec spec = CommandSpec();
  spec.set_snapshot_every_steps(1);
  spec.set_expects_checkpoints(true);
  const uint64_t job = c.Submit(spec);
  c.Exit(job, 2, 0);
  c.Advance(29'000);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  c.Advance(2'000);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::PROCESS_DIED);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(2));
}

TEST(EngineFault, ADeadKeeperNamesItsRanks) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 2, true, false);
  c.node("n1").KillAllRanks(c.now().mono_ns);
  v1::ReportEventsRequest request = c.node("n1").Request();
  auto* event = request.add_events();
  event->set_kind(v1::RankEvent::KIND_KEEPER_DIED);
  event->mutable_rank()->set_job(job);
  event->mutable_rank()->set_attempt(1);
  c.Report(c.node("n1"), request);
  c.Pump();
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(2, 3));
}

TEST(EngineFault, AUserProgramGetsOneRetryAndItsLastLines) {
  FakeCluster c;
  const uint64_t job = c.Submit(CommandSpec());
  c.Exit(job, 0, 1, "ModuleNotFoundError: no module named torch");
  c.Pump();
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  c.Exit(job, 0, 1, "ModuleNotFoundError: no module named torch");
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kFailed);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("user program"));
  EXPECT_EQ(c.Job(job).exit_code(), 1);
  EXPECT_THAT(c.Job(job).last_stderr(), HasSubstr("ModuleNotFoundError"));
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::USER_PROGRAM);
  EXPECT_EQ(c.LastIncident(job).rung(), 6u);
}

TEST(EngineFault, BackoffFromTheThirdFaultAndBudget) {
  FakeCluster c;
  v1::JobSpec spec = TrainerSpec();
  spec.set_has_restarts_max(true);
  spec.set_restarts_max(3);
  const uint64_t job = c.Submit(spec);
  for (int i = 0; i < 2; ++i) {
    c.Exit(job, 0, -SIGKILL);
    c.Pump();
    EXPECT_EQ(c.StateOf(job), kRunning) << i;
  }
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRecovering);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("waits 1 s"));
  c.Advance(900);
  EXPECT_EQ(c.StateOf(job), kRecovering);
  c.Advance(300);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).restarts_left(), 0u);
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kFailed);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("restarts_max 3"));
}

TEST(EngineFault, TwentyKillsWithProgressNeverUseUpABudgetOfThree) {
  FakeCluster c;
  v1::JobSpec spec = TrainerSpec();
  spec.set_has_restarts_max(true);
  spec.set_restarts_max(3);
  const uint64_t job = c.Submit(spec);
  for (uint64_t i = 1; i <= 20; ++i) {
    c.Finish(job, i, true, false);
    c.Exit(job, static_cast<uint32_t>(i % 4), -SIGKILL);
    c.Pump();
    ASSERT_EQ(c.StateOf(job), kRunning) << i << " " << c.Job(job).reason();
    ASSERT_EQ(c.Job(job).start_point().ref().step(), i);
  }
  EXPECT_EQ(c.Job(job).attempt(), 21u);
}

// nodes

TEST(EngineNode, ALostNodeIsReplacedByASpareWithFenceCommit) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  for (uint64_t step = 1; step <= 5; ++step) c.Finish(job, step, true, step == 5);
  c.Prepare(job, 5);
  c.Finish(job, 6, true, false);
  ASSERT_EQ(c.NodeOf(job, 2), "n1");
  c.LoseNode("n1", true);
  c.Exit(job, 0, 1);  // a peer notices at once; the node itself only the lease tells
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRecovering);
  c.Advance(3500);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.NodeOf(job, 0), "n0") << "what still is keeps its place";
  EXPECT_EQ(c.NodeOf(job, 2), "n2");
  EXPECT_EQ(c.Job(job).start_point().source(), v1::StartPoint::SOURCE_CHECKPOINT)
      << "the lost node's memory is gone";
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 5u);
  const v1::Incident incident = c.LastIncident(job);
  EXPECT_EQ(incident.fault_class(), v1::NODE_LOST) << c.Trace();
  EXPECT_EQ(incident.node(), "n1");
  EXPECT_THAT(incident.victims(), ElementsAre(0)) << c.Trace();
  EXPECT_EQ(incident.rung(), 3u);
  EXPECT_EQ(incident.steps_lost(), 1u);
  EXPECT_EQ(NodeView(c, "n1").state(), v1::NODE_STATE_LOST);
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 0u) << "nobody has said that its processes are gone";
}

TEST(EngineNode, WithoutASpareTheJobWaitsAndGoesOnWhenTheNodeReturns) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  c.LoseNode("n1", true);
  c.Advance(4000);
  EXPECT_EQ(c.StateOf(job), kQueued);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("n1 is LOST"));
  EXPECT_EQ(c.LastIncident(job).rung(), 5u);
  const uint64_t other = c.Submit(CommandSpec(1, 1));
  EXPECT_EQ(c.StateOf(other), kQueued) << "a recovering job holds its place";
  c.ReturnNode("n1", true);
  c.Advance(1500);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 5u);
}

TEST(EngineNode, APartitionedNodesRanksAreFencedWhenItComesBack) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  c.LoseNode("n1", /*with_ranks=*/false);
  c.Advance(4000);
  ASSERT_EQ(c.StateOf(job), kRunning);
  ASSERT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_TRUE(c.node("n1").jobs.at(job).ranks.at(2).alive());
  c.node("n1").up = true;
  c.Advance(2000);
  EXPECT_TRUE(c.node("n1").jobs.empty()) << "the old ranks were not stopped and forgotten";
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 2u);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
}

TEST(EngineNode, FenceWitnessWaitsForItsWitnesses) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(CommandSpec());
  c.LoseNode("n1", /*with_ranks=*/true);
  c.Advance(5000);
  EXPECT_EQ(c.StateOf(job), kRecovering);
  EXPECT_THAT(c.Job(job).reason(), HasSubstr("fence: witness"));
  c.Advance(25'000);
  EXPECT_EQ(c.StateOf(job), kRecovering) << "not before fence_ms + margin";
  c.Advance(10'000);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.NodeOf(job, 2), "n2");
}

TEST(EngineNode, FenceWitnessIsReleasedByProof) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(CommandSpec());
  c.LoseNode("n1", /*with_ranks=*/true);
  c.Advance(5000);
  ASSERT_EQ(c.StateOf(job), kRecovering);
  v1::ConfirmNodeDeadRequest confirm;
  confirm.set_idempotency_key("confirm");
  confirm.set_node("n2");
  EXPECT_EQ(c.engine().ConfirmNodeDead(confirm, c.now()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  confirm.set_node("n1");
  ASSERT_TRUE(c.engine().ConfirmNodeDead(confirm, c.now()).ok());
  c.Pump();
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 0u) << "an operator's word frees no device";
}

TEST(EngineNode, AReturningAgentThatReportsItsRanksGoneIsProof) {
  FakeCluster c(2, 2);
  const uint64_t job = c.Submit(CommandSpec());
  c.LoseNode("n1", true);
  c.Advance(4000);
  ASSERT_EQ(c.StateOf(job), kRecovering);
  c.ReturnNode("n1", false);
  c.Advance(1500);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::NODE_LOST);
}

TEST(EngineNode, AnAgentThatComesBackWithItsRanksDisturbsNothing) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.LoseNode("n1", false);
  c.Advance(700);
  c.ReturnNode("n1", false);
  c.Advance(3000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  // Seen and named, and nothing done about it.
  ASSERT_EQ(c.Job(job).incidents_size(), 1);
  EXPECT_EQ(c.LastIncident(job).fault_class(), v1::AGENT_DIED);
  EXPECT_EQ(c.LastIncident(job).node(), "n1");
  EXPECT_EQ(c.LastIncident(job).rung(), 0u);
  EXPECT_FALSE(c.LastIncident(job).acted());
}

TEST(EngineSubmit, AKeyStandsForOneRequest) {
  FakeCluster c;
  const uint64_t job = c.Submit(CommandSpec(), "k");
  EXPECT_EQ(c.Submit(CommandSpec(), "k"), job);
  v1::SubmitJobRequest other;
  other.set_idempotency_key("k");
  *other.mutable_spec() = CommandSpec();
  other.mutable_spec()->set_name("other");
  const absl::Status refused = c.engine().SubmitJob(other, c.now()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was used for j-1"));
  EXPECT_EQ(*c.engine().ResolveJob("1"), job) << "as --json tells it";
  v1::SaveJobRequest save;
  save.set_idempotency_key("s");
  save.set_job("j-1");
  EXPECT_EQ(c.engine().SaveJob(save, c.now()).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it takes no snapshots";
}

TEST(EngineNode, ItsOwnPauseIsNoNodesSilence) {
  FakeCluster c(4, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.Advance(1000);
  for (int i = 0; i < 3; ++i) {
    c.Suspend(5000);
    c.Advance(300);
  }
  c.Advance(3000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).incidents_size(), 0) << c.Trace();
  EXPECT_THAT(c.EventKinds(0), Not(Contains("node.lost")));
}

TEST(EngineNode, ASchedulerThatHearsNobodyIsCutOffItself) {
  FakeCluster c(4, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  for (const char* name : {"n0", "n1", "n2", "n3"}) c.LoseNode(name, false);
  c.Advance(600'000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_THAT(c.EventKinds(0), Not(Contains("node.lost"))) << c.Trace();
  // Once somebody is heard, the silence of the others is theirs.
  c.ReturnNode("n0", false);
  c.ReturnNode("n2", false);
  c.ReturnNode("n3", false);
  c.Advance(5000);
  EXPECT_THAT(c.EventKinds(0), Contains("node.lost")) << c.Trace();
}

// What is queued after a drain and loses a node meanwhile waits for the fence like anything else.
TEST(EngineNode, AQueuedJobOfALostNodeWaitsForTheFence) {
  FakeCluster c(4, 2);
  const uint64_t job = c.Submit(CommandSpec());
  c.Advance(1000);
  const std::string first = c.NodeOf(job, 0), second = c.NodeOf(job, 3);
  c.node(second).obey_stops = false;
  v1::DrainNodeRequest drain;
  drain.set_idempotency_key("d");
  drain.set_node(first);
  ASSERT_TRUE(c.engine().DrainNode(drain, c.now()).ok());
  c.LoseNode(second, false);
  c.Advance(10'000);
  EXPECT_EQ(c.StateOf(job), kQueued) << c.Trace();
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  c.node(second).KillAllRanks(c.now().mono_ns);  // its keeper's deadline
  c.Advance(60'000);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
}

TEST(EngineNode, AnAgentThatWasStoppedInOrderDidNotDie) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.LoseNode("n1", false);
  c.node("n1").predecessor_stopped = true;
  c.ReturnNode("n1", false);
  c.Advance(3000);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).incidents_size(), 0);
}

// A restarted agent that has not heard its keepers yet lists no rank: that is ignorance, not their
// end.
TEST(EngineNode, AnAgentThatDoesNotKnowItsRanksYetDisturbsNothing) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.LoseNode("n1", false);
  v1::RegisterNodeRequest adopting = c.node("n1").Registration(c.now().mono_ns);
  adopting.set_agent_epoch(adopting.agent_epoch() + 1);
  for (auto& on_node : *adopting.mutable_report()->mutable_jobs()) {
    on_node.clear_ranks();
    on_node.set_attempt(0);
    on_node.set_keeper_alive(false);
    on_node.set_adopting(true);
  }
  ASSERT_EQ(adopting.report().jobs_size(), 1);
  for (int level = 0; level < 5; ++level)
    ASSERT_TRUE(c.engine().RegisterNode(adopting, c.now()).ok());
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  for (auto& on_node : *adopting.mutable_report()->mutable_jobs()) on_node.set_adopting(false);
  for (int level = 0; level < 5; ++level)
    ASSERT_TRUE(c.engine().RegisterNode(adopting, c.now()).ok());
  EXPECT_EQ(c.Job(job).attempt(), 2u)
      << "the same levels without the word mean that the ranks are gone";
}

TEST(EngineNode, AnAgentThatComesBackWithoutItsRanksMeansRecovery) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.LoseNode("n1", true);
  c.node("n1").Forget();
  c.node("n1").start_ranks = false;
  c.Advance(300);
  c.ReturnNode("n1", false);
  EXPECT_EQ(c.Job(job).attempt(), 1u) << "one level may have been on its way";
  c.Advance(1000);
  c.node("n1").start_ranks = true;
  c.Advance(1000);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.StateOf(job), kRunning);
  EXPECT_THAT(c.LastIncident(job).ranks(), ElementsAre(2, 3));
}

TEST(EngineNode, ANewBootIsProofAtOnce) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.LoseNode("n1", true);
  c.Advance(2800);
  c.ReturnNode("n1", true);
  c.Advance(500);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.Job(job).start_point().source(), v1::StartPoint::SOURCE_SCRATCH);
}

TEST(EngineNode, ANodeThatNeighboursHearIsNotLost) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 1, true, false);
  // The node's beats do not arrive, but it answers its neighbours.
  const v1::BeatRequest unused = c.node("n1").Beat(c.now().mono_ns);
  EXPECT_EQ(unused.node(), "n1");
  v1::ProbePeerResponse heard;
  heard.set_reachable(true);
  heard.set_last_heard_age_ms(10);
  c.LoseNode("n1", false);
  for (int i = 0; i < 100; ++i) {
    c.Advance(100);
    ASSERT_TRUE(c.engine().NoteProbe({"n2", "", "n1", ""}, true, heard, c.now()).ok());
  }
  EXPECT_EQ(NodeView(c, "n1").state(), v1::NODE_STATE_SUSPECT);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  EXPECT_EQ(c.StateOf(job), kRunning);
}

TEST(EngineNode, AMassLossIsHeld) {
  FakeCluster c(6, 1);
  for (int i = 1; i < 6; ++i) c.LoseNode("n" + std::to_string(i), true);
  c.Advance(5000);
  int lost = 0, held = 0;
  for (const v1::ListNodesResponse all = c.engine().ListNodes(c.now());
       const auto& node : all.nodes()) {
    lost += node.state() == v1::NODE_STATE_LOST;
    held += node.state() == v1::NODE_STATE_SUSPECT;
  }
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(held, 3);
}

TEST(EngineNode, ASecondLiveAgentOfTheSameNameIsRefused) {
  FakeCluster c;
  v1::RegisterNodeRequest other = c.node("n0").Registration(c.now().mono_ns);
  other.set_boot_id("another-machine");
  EXPECT_EQ(c.engine().RegisterNode(other, c.now()).status().code(),
            absl::StatusCode::kAlreadyExists);
  other = c.node("n0").Registration(c.now().mono_ns);
  other.set_address("unix:/elsewhere/agent.sock");
  EXPECT_EQ(c.engine().RegisterNode(other, c.now()).status().code(),
            absl::StatusCode::kAlreadyExists);
  other = c.node("n0").Registration(c.now().mono_ns);
  other.set_node("../etc");
  EXPECT_EQ(c.engine().RegisterNode(other, c.now()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EngineNode, DrainMovesTheJobAndEmptiesTheNode) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  v1::DrainNodeRequest drain;
  drain.set_idempotency_key("drain");
  drain.set_node("n0");
  ASSERT_TRUE(c.engine().DrainNode(drain, c.now()).ok());
  c.Pump();
  c.Advance(1000);
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.NodeOf(job, 0), "n2");
  EXPECT_EQ(c.Job(job).start_point().source(), v1::StartPoint::SOURCE_CHECKPOINT);
  EXPECT_EQ(NodeView(c, "n0").state(), v1::NODE_STATE_DRAINED);
  EXPECT_THAT(c.node("n0").orders_seen[job],
              Contains(std::make_pair(v1::DESIRED_PHASE_STOP, v1::STOP_KIND_GRACEFUL)));
  v1::UncordonNodeRequest uncordon;
  uncordon.set_idempotency_key("uncordon");
  uncordon.set_node("n0");
  ASSERT_TRUE(c.engine().UncordonNode(uncordon, c.now()).ok());
  EXPECT_EQ(NodeView(c, "n0").state(), v1::NODE_STATE_READY);
}

TEST(EngineNode, WhatIsOfNoKnownJobKeepsANodeOutOfUse) {
  FakeCluster c(1, 2);
  FakeJob stranger;
  stranger.ranks[0].attempt = 1;
  c.node("n0").jobs[77] = stranger;
  c.Beat();
  EXPECT_EQ(NodeView(c, "n0").state(), v1::NODE_STATE_DIRTY);
  EXPECT_THAT(NodeView(c, "n0").reason(), HasSubstr("j-77"));
  const uint64_t job = c.Submit(CommandSpec());
  EXPECT_EQ(c.StateOf(job), v1::JOB_STATE_QUEUED);
  c.node("n0").jobs.at(77).ranks.at(0).phase = v1::RANK_PHASE_EXITED;
  c.Beat();
  EXPECT_EQ(NodeView(c, "n0").state(), v1::NODE_STATE_READY) << "nothing of it runs any more";
}

TEST(EngineNode, AProcessThatCannotBeRemovedMakesTheNodeDirty) {
  FakeCluster c(3, 2);
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  c.Prepare(job, 5);
  c.node("n1").obey_stops = false;
  c.node("n1").jobs.at(job).dirty_reason = "pid 77 is in D state";
  c.Exit(job, 0, -SIGKILL);
  c.Pump();
  c.node("n1").KillAllRanks(
      c.now().mono_ns);  // for the invariant: only the report says that something is left
  c.node("n1").jobs.at(job).ranks.at(2).phase = v1::RANK_PHASE_STOPPED;
  v1::ReportEventsRequest level = c.node("n1").Request();
  *level.mutable_report() = c.node("n1").Report(c.now().mono_ns);
  c.node("n1").jobs.at(job).ranks.at(2).phase = v1::RANK_PHASE_EXITED;
  c.Report(c.node("n1"), level);
  c.Pump();
  EXPECT_EQ(NodeView(c, "n1").state(), v1::NODE_STATE_DIRTY);
  EXPECT_THAT(NodeView(c, "n1").reason(), HasSubstr("pid 77"));
  EXPECT_EQ(c.StateOf(job), kRunning) << c.Job(job).reason();
  EXPECT_EQ(c.NodeOf(job, 2), "n2");
  EXPECT_EQ(NodeView(c, "n1").devices_free(), 0u);
}

}  // namespace
}  // namespace holdfast::sched
