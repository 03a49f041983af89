// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/set_modes.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status SetModes(CoreLock* core, const v1::SetModesRequest& request, v1::JobStatus* response) {
  absl::StatusOr<v1::JobStatus> result =
      core->With([&](Engine& engine, Now now) { return engine.SetModes(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
