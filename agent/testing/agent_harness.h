// SPDX-License-Identifier: Apache-2.0
// For foundation tests: real agents, keepers and test ranks in a directory of their own, under a
// fake scheduler. What a test leaves running is killed, and a test that leaves a process behind
// fails.
#ifndef HOLDFAST_AGENT_TESTING_AGENT_HARNESS_H_
#define HOLDFAST_AGENT_TESTING_AGENT_HARNESS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/testing/fake_scheduler.h"
#include "base/testing/temp_dir.h"
#include "ckpt/store.h"

namespace holdfast::agent {

inline constexpr uint64_t kTestJob = 1;

// Looks again until `condition` holds; false at the deadline. For what tells nobody that it
// happened.
bool Eventually(const std::function<bool()>& condition);
bool ProcessLives(pid_t pid);  // a zombie does not

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string StateDir(const std::string& node) const;
  std::string KeeperDir(const std::string& node) const;
  std::string StoreDir() const;
  std::string JobDir() const;

  // Starts holdfast-agent for a node with two simulated devices. Its output goes to <node>.log.
  void StartAgent(const std::string& node);
  void SignalAgent(const std::string& node, int signal);
  int WaitForAgent(const std::string& node);  // its wait status
  void KillAgent(const std::string& node);    // SIGKILL, and waits
  std::string AgentLog(const std::string& node) const;

  // A job of `ranks_per_node` test ranks on each of `nodes`, with `arguments` for the test rank.
  v1::DesiredJob Job(uint64_t attempt, const std::vector<std::string>& nodes,
                     uint32_t ranks_per_node, const std::vector<std::string>& arguments);
  void Want(const v1::DesiredJob& job);  // on all nodes of its placement
  // Publishes STOP of `attempt` and waits for STOP_COMPLETE of every node.
  void StopAndWait(v1::DesiredJob job, uint64_t attempt, v1::StopKind kind);
  void ForgetAndWait(v1::DesiredJob job);

  int Count(v1::RankEvent::Kind kind, uint64_t attempt);
  bool WaitForEvents(v1::RankEvent::Kind kind, uint64_t attempt, int count);
  bool WaitForStep(uint64_t step);  // of rank 0 in the newest level
  std::map<uint32_t, pid_t> Pids(const std::string& node);
  pid_t KeeperPid(const std::string& node);
  // "attempt:step" of every line of the step log.
  std::vector<std::pair<uint64_t, uint64_t>> Steps();
  // Every step of each attempt follows the one before.
  void ExpectNoGaps();
  std::vector<uint64_t> CommittedSteps();

  testing::TempDir dir_;
  std::unique_ptr<FakeScheduler> scheduler_;
  std::map<std::string, pid_t> agents_;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_TESTING_AGENT_HARNESS_H_
