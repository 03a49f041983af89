// SPDX-License-Identifier: Apache-2.0
// Committed, aborted and open saves of a job.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_LIST_CHECKPOINTS_H_
#define HOLDFAST_SCHEDULER_OPS_LIST_CHECKPOINTS_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ListCheckpoints(CoreLock* core, const v1::ListCheckpointsRequest& request,
                             v1::ListCheckpointsResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_LIST_CHECKPOINTS_H_
