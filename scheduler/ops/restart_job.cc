// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/restart_job.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status RestartJob(CoreLock* core, const v1::RestartJobRequest& request,
                        v1::JobStatus* response) {
  absl::StatusOr<v1::JobStatus> result =
      core->With([&](Engine& engine, Now now) { return engine.RestartJob(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
