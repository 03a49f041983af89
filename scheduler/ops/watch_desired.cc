// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/watch_desired.h"

#include <grpcpp/support/sync_stream.h>

#include "proto/channel.h"

namespace holdfast::sched {
namespace {

constexpr int64_t kLookMs =
    500;  // how soon a stream whose reader is gone is noticed when nothing changes

}  // namespace

grpc::Status WatchDesired(CoreLock* core, grpc::ServerContext* context,
                          const v1::WatchDesiredRequest& request,
                          grpc::ServerWriter<v1::DesiredState>* writer) {
  DesiredPublisher& publisher = core->publisher();
  const std::string& node = request.node();
  // Before anything is kept for the node: its name comes from outside.
  const absl::Status known = core->With([&](Engine& engine, Now) {
    return engine.CheckAgent(node, request.boot_id(), request.agent_epoch());
  });
  if (!known.ok()) return proto::ToGrpc(known);
  const uint64_t stream = publisher.BeginStream(node);
  uint64_t seen = 0;
  std::string last_sent;
  while (!context->IsCancelled()) {
    if (publisher.stopping()) return {grpc::StatusCode::UNAVAILABLE, "the scheduler is stopping"};
    if (!publisher.IsNewestStream(node, stream))
      return {grpc::StatusCode::ABORTED, "a newer stream of this node took over"};
    if (!publisher.Wait(node, &seen, kLookMs)) continue;
    v1::DesiredState desired;
    const absl::Status status = core->With([&](Engine& engine, Now) {
      absl::Status still = engine.CheckAgent(node, request.boot_id(), request.agent_epoch());
      if (!still.ok()) return still;
      desired = engine.Desired(node);
      engine.NoteDesiredSent(node, desired);
      return absl::OkStatus();
    });
    if (!status.ok()) return proto::ToGrpc(status);
    std::string bytes = desired.SerializeAsString();
    if (bytes == last_sent) continue;
    last_sent = std::move(bytes);
    desired.set_version(seen);
    if (!writer->Write(desired)) break;
  }
  return {grpc::StatusCode::CANCELLED, "the agent is gone"};
}

}  // namespace holdfast::sched
