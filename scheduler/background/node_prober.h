// SPDX-License-Identifier: Apache-2.0
// Asks neighbours about suspects and witnesses about lost nodes, several at once, so that one that
// hangs delays no other.
//
// Threads: one of its own, and gRPC's for the answers. Stop waits until the last answer is in.
#ifndef HOLDFAST_SCHEDULER_BACKGROUND_NODE_PROBER_H_
#define HOLDFAST_SCHEDULER_BACKGROUND_NODE_PROBER_H_

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "scheduler/background/agent_channels.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

inline constexpr int64_t kProbeEveryMs = 100;
inline constexpr int64_t kProbeDeadlineMs = 1'000;
inline constexpr size_t kProbesInFlightMax = 256;

class NodeProber {
 public:
  NodeProber(CoreLock* core, AgentChannels* channels) : core_(core), channels_(channels) {}
  ~NodeProber() { Stop(); }
  void Start();
  void Stop();

 private:
  struct Call;
  void Main();
  void Ask(const ProbeTask& task);
  void Done(Call* call, const grpc::Status& status);

  CoreLock* const core_;
  AgentChannels* const channels_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::pair<std::string, std::string>> in_flight_
      ABSL_GUARDED_BY(mutex_);  // (neighbour, target)
  std::set<Call*> calls_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_BACKGROUND_NODE_PROBER_H_
