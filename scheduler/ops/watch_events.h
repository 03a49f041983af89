// SPDX-License-Identifier: Apache-2.0
// Events from a sequence on, then live.
// Threads: any; each stream has its own.
#ifndef HOLDFAST_SCHEDULER_OPS_WATCH_EVENTS_H_
#define HOLDFAST_SCHEDULER_OPS_WATCH_EVENTS_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status WatchEvents(CoreLock* core, grpc::ServerContext* context,
                         const v1::WatchEventsRequest& request,
                         grpc::ServerWriter<v1::Event>* writer);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_WATCH_EVENTS_H_
