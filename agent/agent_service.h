// SPDX-License-Identifier: Apache-2.0
// What an agent serves: pings and probes for neighbours and the scheduler, store requests of other
// nodes' ranks, logs. Waiting store requests hold no thread; a followed log holds one, at most
// kLogStreamsMax of them.
#ifndef HOLDFAST_AGENT_AGENT_SERVICE_H_
#define HOLDFAST_AGENT_AGENT_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "agent/event_loop.h"
#include "agent/node.h"
#include "agent/peer_client.h"
#include "base/mutex.h"
#include "holdfast/v1/agent.grpc.pb.h"

namespace holdfast::agent {

inline constexpr int kLogStreamsMax = 64;
inline constexpr size_t kPeersHeardMax = 16384;

using AgentServiceBase = v1::Agent::WithCallbackMethod_Ping<v1::Agent::WithCallbackMethod_ProbePeer<
    v1::Agent::WithCallbackMethod_StoreRequest<v1::Agent::Service>>>;

class AgentService final : public AgentServiceBase {
 public:
  AgentService(EventLoop* loop, Node* node, PeerClient* peers, const NodeOptions& options)
      : loop_(loop), node_(node), peers_(peers), options_(options) {}

  grpc::ServerUnaryReactor* Ping(grpc::CallbackServerContext* context,
                                 const v1::PingRequest* request,
                                 v1::PingResponse* response) override;
  grpc::ServerUnaryReactor* ProbePeer(grpc::CallbackServerContext* context,
                                      const v1::ProbePeerRequest* request,
                                      v1::ProbePeerResponse* response) override;
  grpc::ServerUnaryReactor* StoreRequest(grpc::CallbackServerContext* context,
                                         const v1::StoreRequestRequest* request,
                                         v1::StoreRequestResponse* response) override;
  grpc::Status ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::AgentLogChunk>* writer) override;

  void Stop() { stop_.store(true); }  // ends followed logs soon

 private:
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const;
  struct LogState {
    std::string base;
    bool ended = false;
    std::string why;
  };
  bool AskLog(const v1::ReadLogRequest& request, LogState* out);
  grpc::Status StreamLog(grpc::ServerContext* context, const v1::ReadLogRequest& request,
                         grpc::ServerWriter<v1::AgentLogChunk>* writer);

  EventLoop* const loop_;
  Node* const node_;  // on the loop's thread only
  PeerClient* const peers_;
  const NodeOptions options_;
  std::atomic<bool> stop_{false};
  std::atomic<int> log_streams_{0};
  Mutex mutex_;
  std::map<std::string, int64_t> heard_ns_ ABSL_GUARDED_BY(mutex_);  // by node
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_AGENT_SERVICE_H_
