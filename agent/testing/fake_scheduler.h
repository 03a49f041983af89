// SPDX-License-Identifier: Apache-2.0
// A scheduler for tests of agents: serves AgentLink on a Unix socket, publishes what the test
// wants, remembers all it is told, and can be switched off and on again. It decides nothing but
// commits: a save that all ranks have PREPARED gets its commit order.
#ifndef HOLDFAST_AGENT_TESTING_FAKE_SCHEDULER_H_
#define HOLDFAST_AGENT_TESTING_FAKE_SCHEDULER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "holdfast/v1/agent.grpc.pb.h"

namespace holdfast::agent {

inline constexpr int64_t kTestDeadlineMs = 60'000;

class FakeScheduler {
 public:
  struct Told {
    std::vector<std::pair<std::string, v1::RankEvent>> events;  // by node, in order of arrival
    std::map<std::string, v1::NodeReport> levels;               // newest of each node
    std::map<std::string, v1::NodeReport> stop_levels;          // with the newest STOP_COMPLETE
    std::map<std::string, int> registrations;
    std::map<std::string, v1::RegisterNodeRequest> nodes;
    std::map<std::tuple<uint64_t, uint64_t, uint32_t>, v1::PreparedSave>
        prepared;  // attempt, step, rank
    std::map<std::string, std::vector<int64_t>> beats_ns;
  };

  explicit FakeScheduler(std::string socket);
  ~FakeScheduler();
  FakeScheduler(const FakeScheduler&) = delete;
  FakeScheduler& operator=(const FakeScheduler&) = delete;

  void On();   // serves, under a new epoch
  void Off();  // cuts every connection
  std::string endpoint() const { return "unix:" + socket_; }

  void SetWitnesses(const std::vector<std::string>& addresses);
  // Publishes the level of one job on one node.
  void Want(const std::string& node, const v1::DesiredJob& job);
  void WantNothing(const std::string& node, uint64_t job);
  // Orders a commit once all of `world_size` ranks have prepared it.
  void CommitWhole(uint64_t job, uint32_t world_size);

  // Waits until `condition` holds for what was told; a test failure naming `what` at the deadline.
  bool WaitFor(const std::string& what, const std::function<bool(const Told&)>& condition);
  Told told();

 private:
  class Service;
  v1::DesiredState StateOf(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RelayMasterPorts(const v1::NodeReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Absorb(const v1::PreparedSave& save) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OrderCommits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string socket_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  Told told_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<uint64_t, v1::DesiredJob>> wanted_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint32_t> commit_world_ ABSL_GUARDED_BY(mutex_);  // by job
  std::map<uint64_t, std::map<std::pair<uint64_t, uint64_t>, v1::CommitOrder>> orders_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> witnesses_ ABSL_GUARDED_BY(mutex_);
  std::set<std::tuple<std::string, uint64_t, uint64_t>> seen_
      ABSL_GUARDED_BY(mutex_);  // node, epoch, sequence
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool off_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_TESTING_FAKE_SCHEDULER_H_
