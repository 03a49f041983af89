// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/list_jobs.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status ListJobs(CoreLock* core, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response) {
  absl::StatusOr<v1::ListJobsResponse> result =
      core->With([&](Engine& engine, Now now) { return engine.ListJobs(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
