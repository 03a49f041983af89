// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/list_nodes.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status ListNodes(CoreLock* core, const v1::ListNodesRequest&,
                       v1::ListNodesResponse* response) {
  absl::StatusOr<v1::ListNodesResponse> result = core->With([&](Engine& engine, Now now) {
    return absl::StatusOr<v1::ListNodesResponse>(engine.ListNodes(now));
  });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
