// SPDX-License-Identifier: Apache-2.0
// Edges; the fast path from a fault to the next attempt.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_REPORT_EVENTS_H_
#define HOLDFAST_SCHEDULER_OPS_REPORT_EVENTS_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/agent.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ReportEvents(CoreLock* core, const v1::ReportEventsRequest& request,
                          v1::ReportEventsResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_REPORT_EVENTS_H_
