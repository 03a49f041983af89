// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/save_job.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status SaveJob(CoreLock* core, const v1::SaveJobRequest& request,
                     v1::SaveJobResponse* response) {
  absl::StatusOr<v1::SaveJobResponse> result =
      core->With([&](Engine& engine, Now now) { return engine.SaveJob(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
