// SPDX-License-Identifier: Apache-2.0
// Changes what is done about causes that are found while the ranks of a job live.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_SET_MODES_H_
#define HOLDFAST_SCHEDULER_OPS_SET_MODES_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status SetModes(CoreLock* core, const v1::SetModesRequest& request, v1::JobStatus* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_SET_MODES_H_
