// SPDX-License-Identifier: Apache-2.0
// All nodes, with what is free on them.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_LIST_NODES_H_
#define HOLDFAST_SCHEDULER_OPS_LIST_NODES_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ListNodes(CoreLock* core, const v1::ListNodesRequest& request,
                       v1::ListNodesResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_LIST_NODES_H_
