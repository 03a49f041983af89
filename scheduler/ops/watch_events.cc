// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/watch_events.h"

#include <grpcpp/support/sync_stream.h>

#include "proto/channel.h"

namespace holdfast::sched {
namespace {

constexpr size_t kBatchEvents = 256;
constexpr int64_t kLookMs = 500;

}  // namespace

grpc::Status WatchEvents(CoreLock* core, grpc::ServerContext* context,
                         const v1::WatchEventsRequest& request,
                         grpc::ServerWriter<v1::Event>* writer) {
  uint64_t job = 0;
  if (!request.job().empty()) {
    const absl::StatusOr<uint64_t> id =
        core->With([&](Engine& engine, Now) { return engine.ResolveJob(request.job()); });
    if (!id.ok()) return proto::ToGrpc(id.status());
    job = *id;
  }
  uint64_t after = request.after_sequence();
  while (!context->IsCancelled()) {
    // Taken before the scan: what the scan then does not find up to here is of other jobs.
    const uint64_t newest = core->event_bell().last_event();
    const absl::StatusOr<std::vector<v1::Event>> events = core->Events(after, kBatchEvents, job);
    if (!events.ok()) return proto::ToGrpc(events.status());
    for (const v1::Event& event : *events) {
      if (!writer->Write(event)) return {grpc::StatusCode::CANCELLED, "the watcher is gone"};
      after = event.sequence();
    }
    if (events->size() == kBatchEvents) continue;
    after = std::max(after, newest);
    if (!request.follow()) return grpc::Status::OK;
    if (core->event_bell().stopping())
      return {grpc::StatusCode::UNAVAILABLE, "the scheduler is stopping"};
    core->event_bell().WaitAfter(after, kLookMs);
  }
  return {grpc::StatusCode::CANCELLED, "the watcher is gone"};
}

}  // namespace holdfast::sched
