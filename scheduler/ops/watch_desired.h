// SPDX-License-Identifier: Apache-2.0
// The level of what is wanted of a node, whole, whenever it changes. One stream a node: a newer one
// ends the older. Threads: any; each stream has its own.
#ifndef HOLDFAST_SCHEDULER_OPS_WATCH_DESIRED_H_
#define HOLDFAST_SCHEDULER_OPS_WATCH_DESIRED_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/agent.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status WatchDesired(CoreLock* core, grpc::ServerContext* context,
                          const v1::WatchDesiredRequest& request,
                          grpc::ServerWriter<v1::DesiredState>* writer);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_WATCH_DESIRED_H_
