// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/list_checkpoints.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status ListCheckpoints(CoreLock* core, const v1::ListCheckpointsRequest& request,
                             v1::ListCheckpointsResponse* response) {
  absl::StatusOr<v1::ListCheckpointsResponse> result =
      core->With([&](Engine& engine, Now) { return engine.ListCheckpoints(request.job()); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
