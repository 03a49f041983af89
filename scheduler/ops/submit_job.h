// SPDX-License-Identifier: Apache-2.0
// Validates, persists and answers; the queue is tried in the same turn.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_SUBMIT_JOB_H_
#define HOLDFAST_SCHEDULER_OPS_SUBMIT_JOB_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status SubmitJob(CoreLock* core, const v1::SubmitJobRequest& request,
                       v1::SubmitJobResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_SUBMIT_JOB_H_
