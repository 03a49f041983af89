// SPDX-License-Identifier: Apache-2.0
// An operator's word that a lost node runs nothing any more.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_CONFIRM_NODE_DEAD_H_
#define HOLDFAST_SCHEDULER_OPS_CONFIRM_NODE_DEAD_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ConfirmNodeDead(CoreLock* core, const v1::ConfirmNodeDeadRequest& request,
                             v1::NodeStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_CONFIRM_NODE_DEAD_H_
