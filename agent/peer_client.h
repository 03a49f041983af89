// SPDX-License-Identifier: Apache-2.0
// Calls on other agents, without a thread for each: store requests of our ranks, pings of
// witnesses. Answers come on the loop's thread. One channel for each address, kept while it is
// used. Threads: the loop's; Shutdown from any, once, after which nothing is called any more.
#ifndef HOLDFAST_AGENT_PEER_CLIENT_H_
#define HOLDFAST_AGENT_PEER_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "agent/event_loop.h"
#include "base/mutex.h"
#include "holdfast/v1/agent.grpc.pb.h"

namespace holdfast::agent {

inline constexpr size_t kPeerChannelsMax = 1024;
inline constexpr size_t kPeerCallsMax = 65536;

class PeerClient {
 public:
  // `run_key`: carried by each call (proto/run_key.h); empty: none.
  explicit PeerClient(EventLoop* loop, std::string run_key = "")
      : loop_(loop), run_key_(std::move(run_key)) {}
  ~PeerClient() { Shutdown(); }
  PeerClient(const PeerClient&) = delete;
  PeerClient& operator=(const PeerClient&) = delete;

  void StoreRequest(const std::string& address, const v1::StoreRequestRequest& request,
                    int64_t deadline_ms,
                    std::function<void(absl::StatusOr<std::string> packet)> done);
  // `node`: the name of the node whose agent answered at that address, which may be another one by
  // now; nullopt: nobody answered.
  void Ping(const std::string& address, const v1::PingRequest& request, int64_t deadline_ms,
            std::function<void(const std::optional<std::string>& node)> done);
  void Shutdown();  // cancels all and waits for their ends

 private:
  v1::Agent::Stub* StubOf(const std::string& address);
  bool Begin(grpc::ClientContext* context);
  void End(grpc::ClientContext* context);

  EventLoop* const loop_;
  const std::string run_key_;
  std::map<std::string, std::unique_ptr<v1::Agent::Stub>> stubs_;
  Mutex mutex_;
  CondVar ended_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_PEER_CLIENT_H_
