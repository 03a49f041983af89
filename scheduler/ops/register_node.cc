// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/register_node.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status RegisterNode(CoreLock* core, const v1::RegisterNodeRequest& request,
                          v1::RegisterNodeResponse* response) {
  absl::StatusOr<v1::RegisterNodeResponse> result =
      core->With([&](Engine& engine, Now now) { return engine.RegisterNode(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
