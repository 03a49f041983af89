// SPDX-License-Identifier: Apache-2.0
// Proof of life, and the level of everything.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_BEAT_H_
#define HOLDFAST_SCHEDULER_OPS_BEAT_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/agent.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status Beat(CoreLock* core, const v1::BeatRequest& request, v1::BeatResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_BEAT_H_
