// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/uncordon_node.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status UncordonNode(CoreLock* core, const v1::UncordonNodeRequest& request,
                          v1::NodeStatus* response) {
  absl::StatusOr<v1::NodeStatus> result =
      core->With([&](Engine& engine, Now now) { return engine.UncordonNode(request, now); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
