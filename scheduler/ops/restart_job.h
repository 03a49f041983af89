// SPDX-License-Identifier: Apache-2.0
// Ends the attempt and starts another, from the newest point or from a given step.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_RESTART_JOB_H_
#define HOLDFAST_SCHEDULER_OPS_RESTART_JOB_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status RestartJob(CoreLock* core, const v1::RestartJobRequest& request,
                        v1::JobStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_RESTART_JOB_H_
