// SPDX-License-Identifier: Apache-2.0
#include "agent/peer_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "proto/channel.h"

namespace holdfast::agent {

v1::Agent::Stub* PeerClient::StubOf(const std::string& address) {
  const auto it = stubs_.find(address);
  if (it != stubs_.end()) return it->second.get();
  // Addresses come from the scheduler; a channel that is dropped here ends when its last call does.
  if (stubs_.size() >= kPeerChannelsMax) stubs_.erase(stubs_.begin());
  std::unique_ptr<v1::Agent::Stub>& stub = stubs_[address];
  stub = v1::Agent::NewStub(proto::MakeChannel(address, run_key_));
  return stub.get();
}

bool PeerClient::Begin(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  if (shutdown_ || calls_.size() >= kPeerCallsMax) return false;
  calls_.insert(context);
  return true;
}

void PeerClient::End(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  calls_.erase(context);
  ended_.NotifyAll();
}

void PeerClient::StoreRequest(const std::string& address, const v1::StoreRequestRequest& request,
                              int64_t deadline_ms,
                              std::function<void(absl::StatusOr<std::string>)> done) {
  struct Call {
    grpc::ClientContext context;
    v1::StoreRequestRequest request;
    v1::StoreRequestResponse response;
  };
  // Shared with the callback, which runs on a thread of gRPC.
  auto call = std::make_shared<Call>();
  call->request = request;
  proto::PrepareContext(&call->context, deadline_ms);
  if (!Begin(&call->context)) {
    loop_->Post(
        [done] { done(absl::UnavailableError("too many calls to other agents are waiting")); });
    return;
  }
  StubOf(address)->async()->StoreRequest(
      &call->context, &call->request, &call->response,
      [this, call, done, address](const grpc::Status& status) {
        absl::StatusOr<std::string> answer = std::move(*call->response.mutable_packet());
        if (!status.ok()) {
          const absl::Status error = proto::FromGrpc(status);
          answer =
              absl::Status(error.code(), absl::StrCat("agent at ", address, ": ", error.message()));
        }
        loop_->Post([done, answer = std::move(answer)]() mutable { done(std::move(answer)); });
        End(&call->context);
      });
}

void PeerClient::Ping(const std::string& address, const v1::PingRequest& request,
                      int64_t deadline_ms,
                      std::function<void(const std::optional<std::string>&)> done) {
  struct Call {
    grpc::ClientContext context;
    v1::PingRequest request;
    v1::PingResponse response;
  };
  auto call = std::make_shared<Call>();
  call->request = request;
  proto::PrepareContext(&call->context, deadline_ms);
  if (!Begin(&call->context)) {
    loop_->Post([done] { done(std::nullopt); });
    return;
  }
  StubOf(address)->async()->Ping(&call->context, &call->request, &call->response,
                                 [this, call, done](const grpc::Status& status) {
                                   std::optional<std::string> node;
                                   if (status.ok()) node = call->response.node();
                                   loop_->Post([done, node] { done(node); });
                                   End(&call->context);
                                 });
}

void PeerClient::Shutdown() {
  MutexLock lock(mutex_);
  shutdown_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
  while (!calls_.empty()) ended_.Wait(mutex_);
}

}  // namespace holdfast::agent
