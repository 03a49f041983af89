// SPDX-License-Identifier: Apache-2.0
// Orders the stop; the answer does not wait for it.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_CANCEL_JOB_H_
#define HOLDFAST_SCHEDULER_OPS_CANCEL_JOB_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status CancelJob(CoreLock* core, const v1::CancelJobRequest& request,
                       v1::JobStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_CANCEL_JOB_H_
