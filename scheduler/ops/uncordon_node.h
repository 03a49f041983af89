// SPDX-License-Identifier: Apache-2.0
// The node takes ranks again.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_UNCORDON_NODE_H_
#define HOLDFAST_SCHEDULER_OPS_UNCORDON_NODE_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status UncordonNode(CoreLock* core, const v1::UncordonNodeRequest& request,
                          v1::NodeStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_UNCORDON_NODE_H_
