// SPDX-License-Identifier: Apache-2.0
// One job, by id or by name.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_GET_JOB_H_
#define HOLDFAST_SCHEDULER_OPS_GET_JOB_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status GetJob(CoreLock* core, const v1::GetJobRequest& request, v1::JobStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_GET_JOB_H_
