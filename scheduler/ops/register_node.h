// SPDX-License-Identifier: Apache-2.0
// A node says who it is and what runs on it.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_REGISTER_NODE_H_
#define HOLDFAST_SCHEDULER_OPS_REGISTER_NODE_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/agent.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status RegisterNode(CoreLock* core, const v1::RegisterNodeRequest& request,
                          v1::RegisterNodeResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_REGISTER_NODE_H_
