// SPDX-License-Identifier: Apache-2.0
// No new rank on the node; what runs there goes on elsewhere.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_DRAIN_NODE_H_
#define HOLDFAST_SCHEDULER_OPS_DRAIN_NODE_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status DrainNode(CoreLock* core, const v1::DrainNodeRequest& request,
                       v1::NodeStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_DRAIN_NODE_H_
