// SPDX-License-Identifier: Apache-2.0
// The real agent, keeper and test rank under a fake scheduler.
//
// Fault model: processes die by SIGKILL or stop by SIGSTOP at moments the test chooses, and the
// scheduler goes away and comes back. Not covered: a machine that loses its memory, disks that fail
// (ckpt tests), networks that lose packets.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/process.h"
#include "agent/testing/agent_harness.h"
#include "base/clock.h"
#include "base/rank/recorder.h"
#include "proto/channel.h"

namespace holdfast::agent {
namespace {

using Event = v1::RankEvent;

const v1::RankEvent* Find(const FakeScheduler::Told& told, Event::Kind kind, uint64_t attempt,
                          uint32_t rank) {
  for (const auto& [unused, event] : told.events) {
    if (event.kind() == kind && event.rank().attempt() == attempt && event.rank().rank() == rank)
      return &event;
  }
  return nullptr;
}

// The newest step that all ranks of these levels hold sealed, with the attempt that sealed it.
std::pair<uint64_t, uint64_t> NewestComplete(const std::map<std::string, v1::NodeReport>& levels,
                                             uint32_t world_size) {
  std::map<std::pair<uint64_t, uint64_t>, std::set<uint32_t>> holders;
  for (const auto& [unused, level] : levels) {
    for (const v1::JobOnNode& job : level.jobs()) {
      for (const v1::RankReport& rank : job.ranks()) {
        for (const v1::SnapshotId& id : rank.sealed())
          holders[{id.step(), id.attempt()}].insert(rank.rank());
      }
    }
  }
  std::pair<uint64_t, uint64_t> newest{0, 0};
  for (const auto& [id, ranks] : holders) {
    if (ranks.size() == world_size) newest = id;
  }
  return newest;
}

v1::DesiredJob FromSnapshot(v1::DesiredJob job, uint64_t attempt,
                            std::pair<uint64_t, uint64_t> newest) {
  job.set_attempt(attempt);
  job.set_phase(v1::DESIRED_PHASE_RUN);
  job.mutable_start_point()->set_source(v1::StartPoint::SOURCE_SNAPSHOT);
  job.mutable_start_point()->mutable_ref()->set_job(kTestJob);
  job.mutable_start_point()->mutable_ref()->set_step(newest.first);
  job.mutable_start_point()->mutable_ref()->set_attempt(newest.second);
  return job;
}

TEST_F(AgentTest, TwoRanksToTheEndWithSavesAndNothingLeft) {
  scheduler_->CommitWhole(kTestJob, 2);
  StartAgent("n0");
  const v1::DesiredJob job =
      Job(1, {"n0"}, 2, {"--steps", "12", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  const FakeScheduler::Told told = scheduler_->told();
  for (uint32_t rank : {0u, 1u}) {
    ASSERT_NE(Find(told, Event::KIND_STARTED, 1, rank), nullptr);
    ASSERT_NE(Find(told, Event::KIND_FIRST_STEP, 1, rank), nullptr);
    EXPECT_EQ(Find(told, Event::KIND_EXITED, 1, rank)->rank().exit_code(), 0);
    EXPECT_EQ(Find(told, Event::KIND_EXITED, 1, rank)->rank().step(), 12u);
  }
  ASSERT_TRUE(
      scheduler_->WaitFor("the last commit is in the store", [](const FakeScheduler::Told& t) {
        const auto level = t.levels.find("n0");
        return level != t.levels.end() && level->second.jobs_size() == 1 &&
               level->second.jobs(0).commits_written() == 12;
      }));
  // A snapshot is skipped, by agreement, while both buffers wait for a slow disk; the last one
  // never is.
  const std::vector<uint64_t> committed = CommittedSteps();
  ASSERT_FALSE(committed.empty());
  EXPECT_EQ(committed.back(), 12u);
  for (const uint64_t step : committed) EXPECT_TRUE(step == 5 || step == 10 || step == 12) << step;
  EXPECT_EQ(Steps().size(), 12u);
  ExpectNoGaps();
  const pid_t keeper = KeeperPid("n0");
  ForgetAndWait(job);
  EXPECT_FALSE(std::filesystem::exists(KeeperDir("n0")));
  EXPECT_TRUE(Eventually([keeper] { return !ProcessLives(keeper); }));
  EXPECT_TRUE(std::filesystem::exists(StateDir("n0") + "/logs/j-1/rank0.1.log"))
      << "logs outlive their job";
  SignalAgent("n0", SIGTERM);
  EXPECT_EQ(WaitForAgent("n0"), 0);
  StartAgent("n0");
  EXPECT_TRUE(scheduler_->WaitFor("the word that nobody died", [](const FakeScheduler::Told& t) {
    return t.registrations.at("n0") == 2 && t.nodes.at("n0").predecessor_stopped();
  }));
}

TEST_F(AgentTest, AKilledAgentIsReplacedAndNoRankNotices) {
  scheduler_->CommitWhole(kTestJob, 2);
  StartAgent("n0");
  const v1::DesiredJob job =
      Job(1, {"n0"}, 2, {"--steps", "60", "--step-ms", "25", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(6));
  const std::map<uint32_t, pid_t> before = Pids("n0");
  for (int i = 0; i < 3; ++i) {
    const size_t logged = Steps().size();
    KillAgent("n0");
    StartAgent("n0");
    ASSERT_TRUE(Eventually([&] { return Steps().size() > logged + 3 || Steps().size() == 60; }));
    EXPECT_FALSE(scheduler_->told().nodes.at("n0").predecessor_stopped());
  }
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  EXPECT_EQ(Pids("n0"), before) << "no rank was started again";
  EXPECT_EQ(Count(Event::KIND_STARTED, 1), 2);
  EXPECT_EQ(Steps().size(), 60u);
  ExpectNoGaps();
  ASSERT_TRUE(scheduler_->WaitFor("the last commit", [](const FakeScheduler::Told& t) {
    return t.levels.at("n0").jobs_size() == 1 && t.levels.at("n0").jobs(0).commits_written() == 60;
  }));
  ForgetAndWait(job);
}

TEST_F(AgentTest, AnAgentKilledInsideASaveOrAStoreWriteLosesNothing) {
  for (const char* point : {"agent.save.prepared:after", "agent.store.append:after#5"}) {
    SCOPED_TRACE(point);
    std::filesystem::remove_all(StoreDir());
    std::filesystem::remove_all(JobDir());
    scheduler_ = std::make_unique<FakeScheduler>(dir_.path() + "/s.sock");
    scheduler_->On();
    scheduler_->CommitWhole(kTestJob, 2);
    ::setenv("HOLDFAST_KILL_POINT", point, 1);
    StartAgent("n0");
    ::unsetenv("HOLDFAST_KILL_POINT");
    const v1::DesiredJob job =
        Job(1, {"n0"}, 2, {"--steps", "20", "--step-ms", "10", "--bytes", "65536"});
    Want(job);
    const int status = WaitForAgent("n0");
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "the kill point was not reached";
    StartAgent("n0");
    ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
    ASSERT_TRUE(
        Eventually([&] { return !CommittedSteps().empty() && CommittedSteps().back() == 20; }));
    EXPECT_EQ(Find(scheduler_->told(), Event::KIND_EXITED, 1, 0)->rank().exit_code(), 0);
    EXPECT_EQ(Steps().size(), 20u);
    ExpectNoGaps();
    ForgetAndWait(job);
    KillAgent("n0");
  }
}

TEST_F(AgentTest, AKilledRankIsStoppedAndRestoredFromMemory) {
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "40", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(8));
  ASSERT_EQ(::kill(Pids("n0").at(1), SIGKILL), 0);
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 1));
  const FakeScheduler::Told told = scheduler_->told();
  const v1::RankEvent* exited = Find(told, Event::KIND_EXITED, 1, 1);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->rank().exit_code(), -SIGKILL);
  EXPECT_FALSE(exited->rank().oom_killed());
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  const std::map<std::string, v1::NodeReport> levels = scheduler_->told().stop_levels;
  ASSERT_EQ(levels.count("n0"), 1u);
  EXPECT_TRUE(levels.at("n0").jobs(0).clean());
  const auto newest = NewestComplete(levels, 2);
  EXPECT_GE(newest.first, 7u);
  EXPECT_EQ(newest.second, 1u);
  Want(FromSnapshot(job, 2, newest));
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 2, 2));
  EXPECT_EQ(Find(scheduler_->told(), Event::KIND_EXITED, 2, 0)->rank().exit_code(), 0);
  EXPECT_EQ(Find(scheduler_->told(), Event::KIND_EXITED, 2, 0)->rank().step(), 40u);
  ExpectNoGaps();
  EXPECT_EQ(Steps().back(), (std::pair<uint64_t, uint64_t>{2, 40}));
  EXPECT_TRUE(
      Eventually([this] { return std::filesystem::exists(JobDir() + "/failure.1/why.txt"); }));
  EXPECT_TRUE(std::filesystem::exists(JobDir() + "/failure.1/rank1.tail.log"));
  ForgetAndWait(FromSnapshot(job, 2, newest));
}

TEST_F(AgentTest, AKilledKeeperTakesItsRanksAndTheJobGoesOn) {
  scheduler_->CommitWhole(kTestJob, 2);
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "30", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(7));
  const std::map<uint32_t, pid_t> pids = Pids("n0");
  ASSERT_EQ(::kill(KeeperPid("n0"), SIGKILL), 0);
  ASSERT_TRUE(WaitForEvents(Event::KIND_KEEPER_DIED, 1, 1));
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  for (const auto& [unused, pid] : pids) EXPECT_FALSE(ProcessLives(pid));
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  const auto levels = scheduler_->told().stop_levels;
  EXPECT_TRUE(levels.at("n0").jobs(0).clean());
  EXPECT_EQ(NewestComplete(levels, 2).first, 0u) << "the memory went with the keeper";
  ASSERT_TRUE(Eventually([this] { return !CommittedSteps().empty(); }));
  const uint64_t step = CommittedSteps().back();
  job.set_attempt(2);
  job.set_phase(v1::DESIRED_PHASE_RUN);
  job.mutable_start_point()->set_source(v1::StartPoint::SOURCE_CHECKPOINT);
  job.mutable_start_point()->mutable_ref()->set_job(kTestJob);
  job.mutable_start_point()->mutable_ref()->set_attempt(1);
  job.mutable_start_point()->mutable_ref()->set_step(step);
  Want(job);
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 2, 2));
  EXPECT_EQ(Find(scheduler_->told(), Event::KIND_EXITED, 2, 1)->rank().exit_code(), 0);
  ExpectNoGaps();
  ForgetAndWait(job);
}

TEST_F(AgentTest, AStoppedKeeperIsContinued) {
  StartAgent("n0");
  const v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "10"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  const pid_t keeper = KeeperPid("n0");
  ASSERT_EQ(::kill(keeper, SIGSTOP), 0);
  ::kill(Pids("n0").at(0), SIGKILL);
  // Its end is seen by the keeper alone.
  EXPECT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 1));
  EXPECT_TRUE(ProcessLives(keeper));
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, AKeeperThatDiedWhileNoAgentWasThereIsBuriedByTheNext) {
  StartAgent("n0");
  const v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  KillAgent("n0");
  ASSERT_EQ(::kill(KeeperPid("n0"), SIGKILL), 0);
  StartAgent("n0");
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  EXPECT_EQ(Count(Event::KIND_STARTED, 1), 2) << "an attempt is never started twice";
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, RanksOfARemovedKeeperDirectoryAreReportedAndEndOnOrderOnly) {
  StartAgent("n0");
  const v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  const std::map<uint32_t, pid_t> ranks = Pids("n0");
  const pid_t keeper = KeeperPid("n0");
  KillAgent("n0");
  std::filesystem::remove_all(KeeperDir("n0"));
  StartAgent("n0");
  ASSERT_TRUE(scheduler_->WaitFor("a level that tells of them", [](const FakeScheduler::Told& t) {
    const auto level = t.levels.find("n0");
    return level != t.levels.end() && level->second.jobs_size() == 1 &&
           !level->second.jobs(0).clean() && level->second.jobs(0).attempt() == 1 &&
           !level->second.jobs(0).dirty_reason().empty();
  }));
  EXPECT_EQ(Count(Event::KIND_STARTED, 1), 2) << "an attempt is never started twice";
  EXPECT_TRUE(ProcessLives(keeper));
  for (const auto& [rank, pid] : ranks) EXPECT_TRUE(ProcessLives(pid)) << rank;
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  EXPECT_FALSE(ProcessLives(keeper));
  for (const auto& [rank, pid] : ranks) EXPECT_FALSE(ProcessLives(pid)) << rank;
  Want(Job(3, {"n0"}, 2, {"--steps", "5"}));
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 3, 2)) << "the node can be used again";
  StopAndWait(job, 3, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, AStoppedRankIsReportedAndAShortStopIsNot) {
  StartAgent("n0");
  const v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  const pid_t pid = Pids("n0").at(1);
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(WaitForEvents(Event::KIND_STOPPED, 1, 1));
  const FakeScheduler::Told told = scheduler_->told();
  const v1::RankEvent* stopped = Find(told, Event::KIND_STOPPED, 1, 1);
  ASSERT_NE(stopped, nullptr);
  EXPECT_GE(stopped->age_ms(), 400) << "the age is that of the stop, not of its report";
  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  ASSERT_TRUE(WaitForEvents(Event::KIND_CONTINUED, 1, 1));
  EXPECT_EQ(Count(Event::KIND_STOPPED, 1), 1);
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

// A rank that SIGKILL does not reach keeps its node dirty; the job need not wait for it.
TEST_F(AgentTest, ARankThatCannotBeKilledMakesTheNodeDirty) {
  const std::string freezer = "/sys/fs/cgroup/freezer";
  if (::access((freezer + "/tasks").c_str(), W_OK) != 0)
    GTEST_SKIP() << "needs root and the freezer of cgroup v1";
  StartAgent("n0");
  const v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  const pid_t pid = Pids("n0").at(1);
  const std::string group = freezer + "/holdfast-test-" + std::to_string(::getpid());
  ASSERT_EQ(::mkdir(group.c_str(), 0755), 0);
  std::ofstream(group + "/cgroup.procs") << pid;
  std::ofstream(group + "/freezer.state") << "FROZEN";
  v1::DesiredJob stop = job;
  stop.set_attempt(2);
  stop.set_phase(v1::DESIRED_PHASE_STOP);
  stop.set_stop(v1::STOP_KIND_KILL);
  Want(stop);
  EXPECT_TRUE(scheduler_->WaitFor("a dirty node", [&](const FakeScheduler::Told& told) {
    const auto level = told.levels.find("n0");
    return level != told.levels.end() && level->second.jobs_size() == 1 &&
           level->second.jobs(0).dirty_reason().find("does not end by SIGKILL") !=
               std::string::npos &&
           !level->second.jobs(0).clean();
  }));
  EXPECT_TRUE(ProcessLives(pid));
  std::ofstream(group + "/freezer.state") << "THAWED";
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  EXPECT_TRUE(Eventually([&] { return ::rmdir(group.c_str()) == 0; }));
  ForgetAndWait(job);
}

TEST_F(AgentTest, AGracefulStopSealsALastSnapshotAndSavesIt) {
  StartAgent("n0");
  const v1::DesiredJob job =
      Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  StopAndWait(job, 1, v1::STOP_KIND_GRACEFUL);
  const FakeScheduler::Told told = scheduler_->told();
  const v1::RankEvent* exited = Find(told, Event::KIND_EXITED, 1, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->rank().exit_code(), 0);
  const uint64_t last = exited->rank().step();
  EXPECT_TRUE(
      scheduler_->WaitFor("the last step is prepared", [last](const FakeScheduler::Told& t) {
        return t.prepared.count({1, last, 0}) != 0 && t.prepared.count({1, last, 1}) != 0;
      }));
  ForgetAndWait(job);
}

TEST_F(AgentTest, TermIsFollowedByKillForWhoIgnoresIt) {
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 1, {});
  job.mutable_spec()->clear_command();
  for (const char* word :
       {"/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000 & wait; done"}) {
    job.mutable_spec()->add_command(word);
  }
  Want(job);
  const std::string log = KeeperDir("n0") + "/logs/rank0.1.log";
  ASSERT_TRUE(Eventually(
      [&] { return ReadSmallFile(log).value_or("").find("ready") != std::string::npos; }));
  StopAndWait(job, 1, v1::STOP_KIND_TERM);
  const FakeScheduler::Told told = scheduler_->told();
  const v1::RankEvent* exited = Find(told, Event::KIND_EXITED, 1, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->rank().exit_code(), -SIGKILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, TwoNodesMeetInOneStoreAndSurviveTheirAgents) {
  scheduler_->CommitWhole(kTestJob, 2);
  StartAgent("n0");
  StartAgent("n1");
  const v1::DesiredJob job =
      Job(1, {"n0", "n1"}, 1, {"--steps", "40", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(5));
  for (const char* node : {"n0", "n1"}) {  // who serves the store, then who only asks it
    const size_t logged = Steps().size();
    KillAgent(node);
    StartAgent(node);
    ASSERT_TRUE(Eventually([&] { return Steps().size() > logged + 2 || Steps().size() == 40; }));
  }
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  const FakeScheduler::Told told = scheduler_->told();
  for (uint32_t rank : {0u, 1u})
    EXPECT_EQ(Find(told, Event::KIND_EXITED, 1, rank)->rank().exit_code(), 0);
  EXPECT_EQ(Steps().size(), 40u);
  ExpectNoGaps();
  ASSERT_TRUE(
      Eventually([this] { return !CommittedSteps().empty() && CommittedSteps().back() == 40; }));
  ForgetAndWait(job);
}

// Not the test rank: a shell is enough to see what a rank is given.
TEST_F(AgentTest, RanksOfACommandMeetWhereTheFirstNodeServesAndAnewInEachAttempt) {
  StartAgent("n0");
  StartAgent("n1");
  v1::DesiredJob job = Job(1, {"n0", "n1"}, 1, {});
  job.mutable_spec()->clear_command();
  const std::string out = dir_.path() + "/given";
  for (const std::string& word :
       {std::string("/bin/sh"), std::string("-c"),
        "echo $RANK $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE >> " + out +
            "; exec sleep 1000"})
    job.mutable_spec()->add_command(word);
  const auto lines = [&] {
    std::vector<std::string> found =
        absl::StrSplit(ReadSmallFile(out).value_or(""), '\n', absl::SkipEmpty());
    std::sort(found.begin(), found.end());
    return found;
  };
  Want(job);
  ASSERT_TRUE(Eventually([&] { return lines().size() == 2; }));
  const std::string port = std::vector<std::string>(absl::StrSplit(lines()[0], ' '))[2];
  EXPECT_EQ(lines()[0], absl::StrCat("0 127.0.0.1 ", port, " True"));
  EXPECT_EQ(lines()[1], absl::StrCat("1 127.0.0.1 ", port, " True"));
  const auto serving = [&](const std::string& node) {
    const auto report = scheduler_->told().levels[node];
    return report.jobs_size() == 1 ? report.jobs(0).master_port() : 0;
  };
  KillAgent("n0");
  StartAgent("n0");
  ASSERT_TRUE(Eventually([&] { return scheduler_->told().registrations["n0"] == 2; }));
  EXPECT_EQ(std::to_string(serving("n0")), port) << "a new agent still knows it";
  EXPECT_EQ(serving("n1"), 0u);
  StopAndWait(job, 1, v1::STOP_KIND_KILL);
  job.set_attempt(2);
  Want(job);
  ASSERT_TRUE(Eventually([&] { return lines().size() == 4; }));
  size_t with_old_port = 0;
  for (const std::string& line : lines()) with_old_port += absl::StrContains(line, port) ? 1 : 0;
  EXPECT_EQ(with_old_port, 2u) << "a port was used again";
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, ASchedulerThatIsAwayStopsNobodyAndLearnsEverything) {
  scheduler_->CommitWhole(kTestJob, 2);
  StartAgent("n0");
  const v1::DesiredJob job =
      Job(1, {"n0"}, 2, {"--steps", "40", "--step-ms", "20", "--bytes", "65536"});
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  scheduler_->Off();
  ASSERT_TRUE(Eventually([this] { return Steps().size() == 40; }))
      << "ranks go on without a scheduler";
  scheduler_->On();
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  ASSERT_TRUE(
      Eventually([this] { return !CommittedSteps().empty() && CommittedSteps().back() == 40; }));
  EXPECT_GE(scheduler_->told().registrations.at("n0"), 2);
  ForgetAndWait(job);
}

TEST_F(AgentTest, ASecondAgentOnTheSameStateIsRefused) {
  StartAgent("n0");
  ASSERT_TRUE(scheduler_->WaitFor(
      "registered", [](const FakeScheduler::Told& t) { return t.registrations.count("n0") != 0; }));
  const pid_t first = agents_["n0"];
  StartAgent("n0");
  const int status = WaitForAgent("n0");
  agents_["n0"] = first;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
  EXPECT_NE(AgentLog("n0").find("is used by another agent (process " + std::to_string(first)),
            std::string::npos)
      << AgentLog("n0");
  EXPECT_TRUE(ProcessLives(first));
}

TEST_F(AgentTest, ACommandThatDoesNotExistIsAFailedStart) {
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {});
  job.mutable_spec()->set_command(0, "/nonexistent/train");
  Want(job);
  ASSERT_TRUE(WaitForEvents(Event::KIND_START_FAILED, 1, 2));
  const FakeScheduler::Told told = scheduler_->told();
  const std::string detail = Find(told, Event::KIND_START_FAILED, 1, 0)->detail();
  EXPECT_NE(detail.find("/nonexistent/train"), std::string::npos) << detail;
  EXPECT_NE(detail.find("No such file"), std::string::npos) << detail;
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, ARankThatWritesNonsenseHarmsItselfOnly) {
  StartAgent("n0");
  const v1::DesiredJob job =
      Job(1, {"n0"}, 2,
          {"--steps", "20", "--step-ms", "10", "--nonsense-at", "5", "--fault-rank", "1"});
  Want(job);
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 1));
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  EXPECT_TRUE(ProcessLives(agents_["n0"]));
  EXPECT_TRUE(ProcessLives(KeeperPid("n0")));
  ForgetAndWait(job);
}

TEST_F(AgentTest, ANodeCutFromSchedulerAndWitnessesStopsItsRanks) {
  scheduler_->SetWitnesses({"unix:" + dir_.path() + "/nobody.sock"});
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  job.mutable_spec()->set_fence(v1::FENCE_MODE_WITNESS);
  job.mutable_spec()->set_fence_ms(3000);
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  ASSERT_TRUE(scheduler_->WaitFor("a beat with ranks running", [](const FakeScheduler::Told& t) {
    return t.beats_ns.count("n0") != 0 && t.beats_ns.at("n0").size() > 4;
  }));
  const std::map<uint32_t, pid_t> pids = Pids("n0");
  scheduler_->Off();
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(pids.at(0)) && !ProcessLives(pids.at(1)); }));
  scheduler_->On();
  ASSERT_TRUE(WaitForEvents(Event::KIND_FENCED, 1, 1));
  ASSERT_TRUE(WaitForEvents(Event::KIND_EXITED, 1, 2));
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

// Its ranks have a deadline from their start on, not from the next beat.
TEST_F(AgentTest, AnAgentThatDiesRightAfterAStartLeavesADeadlineBehind) {
  scheduler_->SetWitnesses({"unix:" + dir_.path() + "/nobody.sock"});
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  job.mutable_spec()->set_fence(v1::FENCE_MODE_WITNESS);
  job.mutable_spec()->set_fence_ms(2000);
  Want(job);
  ASSERT_TRUE(WaitForEvents(Event::KIND_STARTED, 1, 2));
  KillAgent("n0");
  std::vector<pid_t> pids;
  for (const auto& [unused, event] : scheduler_->told().events) {
    if (event.kind() == Event::KIND_STARTED) pids.push_back(static_cast<pid_t>(event.rank().pid()));
  }
  ASSERT_EQ(pids.size(), 2u);
  EXPECT_TRUE(Eventually([&] { return std::none_of(pids.begin(), pids.end(), ProcessLives); }))
      << "without a deadline they run for ever";
  StartAgent("n0");
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  ForgetAndWait(job);
}

TEST_F(AgentTest, AWitnessThatAnswersKeepsTheRanksAlive) {
  constexpr int64_t kFenceMs = 5000;
  StartAgent("n1");
  scheduler_->SetWitnesses({"unix:" + StateDir("n1") + "/agent.sock"});
  StartAgent("n0");
  v1::DesiredJob job = Job(1, {"n0"}, 2, {"--steps", "100000", "--step-ms", "20"});
  job.mutable_spec()->set_fence(v1::FENCE_MODE_WITNESS);
  job.mutable_spec()->set_fence_ms(kFenceMs);
  Want(job);
  ASSERT_TRUE(WaitForStep(3));
  const std::map<uint32_t, pid_t> pids = Pids("n0");
  scheduler_->Off();
  const SystemClock clock;
  const int64_t until_ns = clock.MonoNs() + 2 * kFenceMs * kNsPerMs;
  ASSERT_TRUE(Eventually([&] { return clock.MonoNs() > until_ns || !ProcessLives(pids.at(0)); }));
  EXPECT_TRUE(ProcessLives(pids.at(0)) && ProcessLives(pids.at(1)))
      << "stopped although a witness answers";
  const size_t logged = Steps().size();
  EXPECT_TRUE(Eventually([&] { return Steps().size() > logged; })) << "and they still train";
  scheduler_->On();
  StopAndWait(job, 2, v1::STOP_KIND_KILL);
  EXPECT_EQ(Count(Event::KIND_FENCED, 1), 0);
  ForgetAndWait(job);
}

// A pod's address or a port goes to somebody else: a dead node must not look alive by it.
TEST_F(AgentTest, AnotherNodeAtAPeersAddressIsNotThatPeer) {
  StartAgent("n0");
  StartAgent("n1");
  const auto reachable = [this](const std::string& node, const std::string& at) {
    const std::string asked = "unix:" + StateDir("n0") + "/agent.sock";
    auto stub = v1::Agent::NewStub(proto::MakeChannel(asked, /*run_key=*/""));
    v1::ProbePeerRequest request;
    v1::ProbePeerResponse response;
    request.set_node(node);
    request.set_address("unix:" + StateDir(at) + "/agent.sock");
    grpc::ClientContext context;
    proto::PrepareContext(&context, kTestDeadlineMs);
    const grpc::Status status = stub->ProbePeer(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.reachable();
  };
  ASSERT_TRUE(Eventually([&] { return reachable("n1", "n1"); }));
  EXPECT_FALSE(reachable("n2", "n1")) << "n1 answered in the place of n2";
  EXPECT_FALSE(reachable("n1", "n0"));
}

TEST_F(AgentTest, DevicesThatChangeAreInTheNextBeat) {
  StartAgent("n0");
  const auto healthy = [](const FakeScheduler::Told& t, bool wanted) {
    const auto level = t.levels.find("n0");
    return level != t.levels.end() && level->second.devices_size() == 2 &&
           level->second.devices(0).healthy() == wanted;
  };
  ASSERT_TRUE(scheduler_->WaitFor("two devices",
                                  [&](const FakeScheduler::Told& t) { return healthy(t, true); }));
  const std::string file = dir_.path() + "/n0.devices.json";
  std::ofstream(file + ".new")
      << R"({"devices":[{"id":"n0-gpu0","healthy":false,"reason":"XID 79"},{"id":"n0-gpu1"}]})";
  std::filesystem::rename(file + ".new", file);
  ASSERT_TRUE(scheduler_->WaitFor("a sick device",
                                  [&](const FakeScheduler::Told& t) { return healthy(t, false); }));
  std::ofstream(file + ".new") << "{";
  std::filesystem::rename(file + ".new", file);
  EXPECT_TRUE(Eventually(
      [this] { return AgentLog("n0").find("the last good reading stays") != std::string::npos; }));
}

TEST_F(AgentTest, AStateDirectoryThatCannotBeWrittenIsOneClearError) {
  if (::geteuid() == 0) {
    // Root writes everywhere but into a file.
    std::filesystem::create_directories(dir_.path() + "/nodes");
    std::ofstream(dir_.path() + "/nodes/n0.file") << "";
    std::filesystem::create_directories(StateDir("n0"));
    std::ofstream(StateDir("n0") + "/keepers") << "in the way";
  } else {
    std::filesystem::create_directories(StateDir("n0"));
    ASSERT_EQ(::chmod(StateDir("n0").c_str(), 0500), 0);
  }
  StartAgent("n0");
  const int status = WaitForAgent("n0");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
  EXPECT_NE(AgentLog("n0").find(StateDir("n0")), std::string::npos) << AgentLog("n0");
}

}  // namespace
}  // namespace holdfast::agent
