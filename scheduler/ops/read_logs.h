// SPDX-License-Identifier: Apache-2.0
// Logs of a job's ranks, fetched from the agents of the nodes they ran on. The stream ends with a
// chunk whose `end` is set and whose end_reason says how: "job DONE", "end of what is there",
// "truncated: ...". A follower goes on from attempt to attempt.
//
// Threads: one for each rank while the call lasts, joined before it returns; at most kLogRanksMax.
#ifndef HOLDFAST_SCHEDULER_OPS_READ_LOGS_H_
#define HOLDFAST_SCHEDULER_OPS_READ_LOGS_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/background/agent_channels.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

inline constexpr size_t kLogRanksMax = 256;

grpc::Status ReadLogs(CoreLock* core, AgentChannels* channels, grpc::ServerContext* context,
                      const v1::ReadLogsRequest& request, grpc::ServerWriter<v1::LogChunk>* writer);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_READ_LOGS_H_
