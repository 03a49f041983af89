// SPDX-License-Identifier: Apache-2.0
// Asks the ranks for a snapshot that is persisted.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_SAVE_JOB_H_
#define HOLDFAST_SCHEDULER_OPS_SAVE_JOB_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status SaveJob(CoreLock* core, const v1::SaveJobRequest& request,
                     v1::SaveJobResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_SAVE_JOB_H_
