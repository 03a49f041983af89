// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/submit_job.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status SubmitJob(CoreLock* core, const v1::SubmitJobRequest& request,
                       v1::SubmitJobResponse* response) {
  absl::StatusOr<v1::SubmitJobResponse> result =
      core->With([&](Engine& engine, Now now) { return engine.SubmitJob(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
