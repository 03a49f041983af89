// SPDX-License-Identifier: Apache-2.0
// The two gRPC services, each method one operation of ops/.
//
// Threads: gRPC's. Not owning.
#ifndef HOLDFAST_SCHEDULER_SERVICE_H_
#define HOLDFAST_SCHEDULER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "holdfast/v1/agent.grpc.pb.h"
#include "holdfast/v1/scheduler.grpc.pb.h"
#include "scheduler/background/agent_channels.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

class SchedulerService final : public v1::Scheduler::Service {
 public:
  // `run_key`: what a caller over TCP must hold (proto/run_key.h); empty: nothing.
  SchedulerService(CoreLock* core, AgentChannels* channels, std::string run_key)
      : core_(core), channels_(channels), run_key_(std::move(run_key)) {}

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest*,
                         v1::SubmitJobResponse*) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::JobStatus*) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse*) override;
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*,
                         v1::JobStatus*) override;
  grpc::Status RestartJob(grpc::ServerContext*, const v1::RestartJobRequest*,
                          v1::JobStatus*) override;
  grpc::Status SaveJob(grpc::ServerContext*, const v1::SaveJobRequest*,
                       v1::SaveJobResponse*) override;
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse*) override;
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse*) override;
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest*,
                         v1::NodeStatus*) override;
  grpc::Status UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest*,
                            v1::NodeStatus*) override;
  grpc::Status ConfirmNodeDead(grpc::ServerContext*, const v1::ConfirmNodeDeadRequest*,
                               v1::NodeStatus*) override;
  grpc::Status ListLedger(grpc::ServerContext*, const v1::ListLedgerRequest*,
                          v1::ListLedgerResponse*) override;
  grpc::Status SetModes(grpc::ServerContext*, const v1::SetModesRequest*, v1::JobStatus*) override;
  grpc::Status WatchEvents(grpc::ServerContext*, const v1::WatchEventsRequest*,
                           grpc::ServerWriter<v1::Event>*) override;
  grpc::Status ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest*,
                        grpc::ServerWriter<v1::LogChunk>*) override;

 private:
  CoreLock* const core_;
  AgentChannels* const channels_;
  const std::string run_key_;
};

class AgentLinkService final : public v1::AgentLink::Service {
 public:
  AgentLinkService(CoreLock* core, std::string run_key)
      : core_(core), run_key_(std::move(run_key)) {}

  grpc::Status RegisterNode(grpc::ServerContext*, const v1::RegisterNodeRequest*,
                            v1::RegisterNodeResponse*) override;
  grpc::Status Beat(grpc::ServerContext*, const v1::BeatRequest*, v1::BeatResponse*) override;
  grpc::Status WatchDesired(grpc::ServerContext*, const v1::WatchDesiredRequest*,
                            grpc::ServerWriter<v1::DesiredState>*) override;
  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest*,
                            v1::ReportEventsResponse*) override;

 private:
  CoreLock* const core_;
  const std::string run_key_;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_SERVICE_H_
