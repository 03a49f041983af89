// SPDX-License-Identifier: Apache-2.0
// Channels to agents, one for each address.
//
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_BACKGROUND_AGENT_CHANNELS_H_
#define HOLDFAST_SCHEDULER_BACKGROUND_AGENT_CHANNELS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/mutex.h"
#include "holdfast/v1/agent.grpc.pb.h"
#include "proto/channel.h"

namespace holdfast::sched {

class AgentChannels {
 public:
  explicit AgentChannels(std::string run_key = "") : run_key_(std::move(run_key)) {}

  // Also when the agent is not there: calls say so.
  std::shared_ptr<v1::Agent::Stub> Get(const std::string& address) {
    MutexLock lock(mutex_);
    std::shared_ptr<v1::Agent::Stub>& stub = stubs_[address];
    if (stub == nullptr) stub = v1::Agent::NewStub(proto::MakeChannel(address, run_key_));
    std::shared_ptr<v1::Agent::Stub> result = stub;  // callers keep theirs while the map is emptied
    if (stubs_.size() > static_cast<size_t>(kNodesMax)) stubs_.clear();
    return result;
  }

 private:
  const std::string run_key_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<v1::Agent::Stub>> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_BACKGROUND_AGENT_CHANNELS_H_
