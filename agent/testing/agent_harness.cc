// SPDX-License-Identifier: Apache-2.0
#include "agent/testing/agent_harness.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/process.h"
#include "base/clock.h"
#include "base/rank/recorder.h"

extern char** environ;

namespace holdfast::agent {
namespace {

constexpr int kLookMs = 10;

// Tests live in <build>/tests, programs in <build>/bin.
std::string Program(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin" /
          name)
      .string();
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const SystemClock clock;
  const int64_t deadline_ns = clock.MonoNs() + kTestDeadlineMs * kNsPerMs;
  while (!condition()) {
    if (clock.MonoNs() >= deadline_ns) return false;
    ::poll(nullptr, 0, kLookMs);
  }
  return true;
}

bool ProcessLives(pid_t pid) {
  const char state = ReadProcessState(pid);
  return state != 0 && state != 'Z' && state != 'X';
}

void AgentTest::SetUp() {
  scheduler_ = std::make_unique<FakeScheduler>(dir_.path() + "/s.sock");
  scheduler_->On();
}

void AgentTest::TearDown() {
  for (const auto& [node, pid] : agents_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  std::error_code error;
  for (const auto& node : std::filesystem::directory_iterator(dir_.path() + "/nodes", error)) {
    for (const auto& keeper : std::filesystem::directory_iterator(node.path() / "keepers", error)) {
      const pid_t pid = static_cast<pid_t>(
          std::atoi(ReadSmallFile((keeper.path() / "pid").string()).value_or("0").c_str()));
      if (pid > 1 && ReadComm(pid) == "holdfast-keeper") ::kill(pid, SIGKILL);
    }
  }
  EXPECT_TRUE(Eventually([this] { return FindRankProcesses(dir_.path(), "").empty(); }))
      << "processes are left behind";
  scheduler_->Off();
  if (!HasFailure()) return;
  for (const auto& [node, unused] : agents_)
    std::fprintf(stderr, "---- %s\n%s\n", node.c_str(), AgentLog(node).c_str());
}

std::string AgentTest::StateDir(const std::string& node) const {
  return dir_.path() + "/nodes/" + node;
}
std::string AgentTest::KeeperDir(const std::string& node) const {
  return StateDir(node) + "/keepers/j-1";
}
std::string AgentTest::StoreDir() const { return dir_.path() + "/store"; }
std::string AgentTest::JobDir() const { return dir_.path() + "/jobs/j-1"; }
std::string AgentTest::AgentLog(const std::string& node) const {
  return ReadSmallFile(dir_.path() + "/" + node + ".log").value_or("");
}

void AgentTest::StartAgent(const std::string& node) {
  std::filesystem::create_directories(StateDir(node));
  const std::string devices = dir_.path() + "/" + node + ".devices.json";
  std::ofstream(devices) << R"({"devices":[{"id":")" << node << R"(-gpu0"},{"id":")" << node
                         << R"(-gpu1"}]})";
  std::vector<std::string> words = {Program("holdfast-agent"),
                                    "--node",
                                    node,
                                    "--state",
                                    StateDir(node),
                                    "--scheduler",
                                    scheduler_->endpoint(),
                                    "--jobs-dir",
                                    dir_.path() + "/jobs",
                                    "--devices",
                                    "simulated:" + devices};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = dir_.path() + "/" + node + ".log";
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
  posix_spawn_file_actions_destroy(&actions);
  agents_[node] = pid;
}

void AgentTest::SignalAgent(const std::string& node, int signal) {
  ASSERT_EQ(::kill(agents_[node], signal), 0);
}

int AgentTest::WaitForAgent(const std::string& node) {
  int status = 0;
  EXPECT_EQ(::waitpid(agents_[node], &status, 0), agents_[node]);
  agents_.erase(node);
  return status;
}

void AgentTest::KillAgent(const std::string& node) {
  SignalAgent(node, SIGKILL);
  WaitForAgent(node);
}

v1::DesiredJob AgentTest::Job(uint64_t attempt, const std::vector<std::string>& nodes,
                              uint32_t ranks_per_node, const std::vector<std::string>& arguments) {
  v1::DesiredJob job;
  job.set_job(kTestJob);
  job.set_attempt(attempt);
  job.set_phase(v1::DESIRED_PHASE_RUN);
  job.set_store(StoreDir());
  job.set_rendezvous_address("unix:" + StateDir(nodes[0]) + "/agent.sock");
  v1::JobSpec* spec = job.mutable_spec();
  spec->add_command(Program("holdfast-test-rank"));
  for (const std::string& argument : arguments) spec->add_command(argument);
  spec->set_working_directory(dir_.path());
  spec->set_snapshot_every_steps(1);
  spec->set_persist_every_steps(5);
  spec->set_fence(v1::FENCE_MODE_COMMIT);
  spec->set_uid(::geteuid());
  spec->set_gid(::getegid());
  uint32_t rank = 0;
  for (const std::string& node : nodes) {
    v1::NodePlacement* placed = job.mutable_placement()->add_nodes();
    placed->set_node(node);
    for (uint32_t local = 0; local < ranks_per_node; ++local) {
      v1::RankPlacement* out = placed->add_ranks();
      out->set_rank(rank++);
      out->set_local_rank(local);
      out->set_device_id(node + "-gpu" + std::to_string(local));
    }
  }
  job.mutable_start_point()->set_source(v1::StartPoint::SOURCE_SCRATCH);
  return job;
}

void AgentTest::Want(const v1::DesiredJob& job) {
  for (const v1::NodePlacement& node : job.placement().nodes()) scheduler_->Want(node.node(), job);
}

int AgentTest::Count(v1::RankEvent::Kind kind, uint64_t attempt) {
  int count = 0;
  for (const auto& [unused, event] : scheduler_->told().events) {
    count += event.kind() == kind && event.rank().attempt() == attempt ? 1 : 0;
  }
  return count;
}

bool AgentTest::WaitForEvents(v1::RankEvent::Kind kind, uint64_t attempt, int count) {
  const std::string what = std::to_string(count) + " " + v1::RankEvent::Kind_Name(kind) +
                           " of attempt " + std::to_string(attempt);
  return scheduler_->WaitFor(what, [&](const FakeScheduler::Told& told) {
    int seen = 0;
    for (const auto& [unused, event] : told.events) {
      seen += event.kind() == kind && event.rank().attempt() == attempt ? 1 : 0;
    }
    return seen >= count;
  });
}

bool AgentTest::WaitForStep(uint64_t step) {
  return scheduler_->WaitFor("step " + std::to_string(step), [&](const FakeScheduler::Told& told) {
    for (const auto& [unused, level] : told.levels) {
      for (const v1::JobOnNode& job : level.jobs()) {
        for (const v1::RankReport& rank : job.ranks()) {
          if (rank.rank() == 0 && rank.step() >= step) return true;
        }
      }
    }
    return false;
  });
}

void AgentTest::StopAndWait(v1::DesiredJob job, uint64_t attempt, v1::StopKind kind) {
  job.set_attempt(attempt);
  job.set_phase(v1::DESIRED_PHASE_STOP);
  job.set_stop(kind);
  job.set_stop_reason(rank::kStopCancel);
  Want(job);
  ASSERT_TRUE(
      WaitForEvents(v1::RankEvent::KIND_STOP_COMPLETE, attempt, job.placement().nodes_size()));
}

void AgentTest::ForgetAndWait(v1::DesiredJob job) {
  job.set_phase(v1::DESIRED_PHASE_FORGET);
  Want(job);
  ASSERT_TRUE(scheduler_->WaitFor("the job is forgotten", [&](const FakeScheduler::Told& told) {
    for (const auto& [unused, level] : told.levels) {
      if (level.jobs_size() > 0) return false;
    }
    return true;
  }));
}

std::map<uint32_t, pid_t> AgentTest::Pids(const std::string& node) {
  std::map<uint32_t, pid_t> pids;
  const FakeScheduler::Told told = scheduler_->told();
  const auto level = told.levels.find(node);
  for (int i = 0; level != told.levels.end() && i < level->second.jobs_size(); ++i) {
    for (const v1::RankReport& rank : level->second.jobs(i).ranks())
      pids[rank.rank()] = static_cast<pid_t>(rank.pid());
  }
  return pids;
}

pid_t AgentTest::KeeperPid(const std::string& node) {
  return static_cast<pid_t>(
      std::atoi(ReadSmallFile(KeeperDir(node) + "/pid").value_or("0").c_str()));
}

std::vector<std::pair<uint64_t, uint64_t>> AgentTest::Steps() {
  std::vector<std::pair<uint64_t, uint64_t>> steps;
  std::ifstream in(JobDir() + "/steps.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line;
    if (json.is_object())
      steps.emplace_back(json["attempt"].get<uint64_t>(), json["step"].get<uint64_t>());
  }
  return steps;
}

void AgentTest::ExpectNoGaps() {
  const std::vector<std::pair<uint64_t, uint64_t>> steps = Steps();
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].first == steps[i - 1].first) {
      EXPECT_EQ(steps[i].second, steps[i - 1].second + 1) << "line " << i + 1;
    } else {
      EXPECT_GT(steps[i].first, steps[i - 1].first) << "line " << i + 1;
      EXPECT_LE(steps[i].second, steps[i - 1].second + 1) << "line " << i + 1;
    }
  }
}

std::vector<uint64_t> AgentTest::CommittedSteps() {
  std::vector<uint64_t> steps;
  const absl::StatusOr<std::unique_ptr<ckpt::Store>> store =
      ckpt::Store::Open(PosixFileSystem(), StoreDir(), {});
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return steps;
  const absl::StatusOr<std::vector<ckpt::ListedCheckpoint>> listed = (*store)->List();
  EXPECT_TRUE(listed.ok()) << listed.status();
  for (size_t i = 0; listed.ok() && i < listed->size(); ++i) {
    if ((*listed)[i].committed) steps.push_back((*listed)[i].id.step);
  }
  return steps;
}

}  // namespace holdfast::agent
