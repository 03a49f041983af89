// SPDX-License-Identifier: Apache-2.0
// Jobs by id, in pages.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_LIST_JOBS_H_
#define HOLDFAST_SCHEDULER_OPS_LIST_JOBS_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ListJobs(CoreLock* core, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_LIST_JOBS_H_
