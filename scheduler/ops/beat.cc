// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/beat.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status Beat(CoreLock* core, const v1::BeatRequest& request, v1::BeatResponse* response) {
  absl::StatusOr<v1::BeatResponse> result =
      core->With([&](Engine& engine, Now now) { return engine.Beat(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
