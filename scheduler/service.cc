// SPDX-License-Identifier: Apache-2.0
#include "scheduler/service.h"

#include "proto/run_key.h"
#include "scheduler/ops/beat.h"
#include "scheduler/ops/cancel_job.h"
#include "scheduler/ops/confirm_node_dead.h"
#include "scheduler/ops/drain_node.h"
#include "scheduler/ops/get_job.h"
#include "scheduler/ops/list_checkpoints.h"
#include "scheduler/ops/list_jobs.h"
#include "scheduler/ops/list_ledger.h"
#include "scheduler/ops/list_nodes.h"
#include "scheduler/ops/read_logs.h"
#include "scheduler/ops/register_node.h"
#include "scheduler/ops/report_events.h"
#include "scheduler/ops/restart_job.h"
#include "scheduler/ops/save_job.h"
#include "scheduler/ops/set_modes.h"
#include "scheduler/ops/submit_job.h"
#include "scheduler/ops/uncordon_node.h"
#include "scheduler/ops/watch_desired.h"
#include "scheduler/ops/watch_events.h"

// First in every method: a caller over TCP must hold the run's key, if there is one.
#define HF_ADMIT(context)                                                                   \
  if (const grpc::Status refused = proto::CheckRunKey(run_key_, *(context)); !refused.ok()) \
  return refused

namespace holdfast::sched {

grpc::Status SchedulerService::SubmitJob(grpc::ServerContext* context,
                                         const v1::SubmitJobRequest* request,
                                         v1::SubmitJobResponse* response) {
  HF_ADMIT(context);
  return sched::SubmitJob(core_, *request, response);
}

grpc::Status SchedulerService::GetJob(grpc::ServerContext* context,
                                      const v1::GetJobRequest* request, v1::JobStatus* response) {
  HF_ADMIT(context);
  return sched::GetJob(core_, *request, response);
}

grpc::Status SchedulerService::ListJobs(grpc::ServerContext* context,
                                        const v1::ListJobsRequest* request,
                                        v1::ListJobsResponse* response) {
  HF_ADMIT(context);
  return sched::ListJobs(core_, *request, response);
}

grpc::Status SchedulerService::CancelJob(grpc::ServerContext* context,
                                         const v1::CancelJobRequest* request,
                                         v1::JobStatus* response) {
  HF_ADMIT(context);
  return sched::CancelJob(core_, *request, response);
}

grpc::Status SchedulerService::RestartJob(grpc::ServerContext* context,
                                          const v1::RestartJobRequest* request,
                                          v1::JobStatus* response) {
  HF_ADMIT(context);
  return sched::RestartJob(core_, *request, response);
}

grpc::Status SchedulerService::SaveJob(grpc::ServerContext* context,
                                       const v1::SaveJobRequest* request,
                                       v1::SaveJobResponse* response) {
  HF_ADMIT(context);
  return sched::SaveJob(core_, *request, response);
}

grpc::Status SchedulerService::ListCheckpoints(grpc::ServerContext* context,
                                               const v1::ListCheckpointsRequest* request,
                                               v1::ListCheckpointsResponse* response) {
  HF_ADMIT(context);
  return sched::ListCheckpoints(core_, *request, response);
}

grpc::Status SchedulerService::ListNodes(grpc::ServerContext* context,
                                         const v1::ListNodesRequest* request,
                                         v1::ListNodesResponse* response) {
  HF_ADMIT(context);
  return sched::ListNodes(core_, *request, response);
}

grpc::Status SchedulerService::DrainNode(grpc::ServerContext* context,
                                         const v1::DrainNodeRequest* request,
                                         v1::NodeStatus* response) {
  HF_ADMIT(context);
  return sched::DrainNode(core_, *request, response);
}

grpc::Status SchedulerService::UncordonNode(grpc::ServerContext* context,
                                            const v1::UncordonNodeRequest* request,
                                            v1::NodeStatus* response) {
  HF_ADMIT(context);
  return sched::UncordonNode(core_, *request, response);
}

grpc::Status SchedulerService::ConfirmNodeDead(grpc::ServerContext* context,
                                               const v1::ConfirmNodeDeadRequest* request,
                                               v1::NodeStatus* response) {
  HF_ADMIT(context);
  return sched::ConfirmNodeDead(core_, *request, response);
}

grpc::Status SchedulerService::ListLedger(grpc::ServerContext* context,
                                          const v1::ListLedgerRequest* request,
                                          v1::ListLedgerResponse* response) {
  HF_ADMIT(context);
  return sched::ListLedger(core_, *request, response);
}

grpc::Status SchedulerService::SetModes(grpc::ServerContext* context,
                                        const v1::SetModesRequest* request,
                                        v1::JobStatus* response) {
  HF_ADMIT(context);
  return sched::SetModes(core_, *request, response);
}

grpc::Status SchedulerService::WatchEvents(grpc::ServerContext* context,
                                           const v1::WatchEventsRequest* request,
                                           grpc::ServerWriter<v1::Event>* writer) {
  HF_ADMIT(context);
  return sched::WatchEvents(core_, context, *request, writer);
}

grpc::Status SchedulerService::ReadLogs(grpc::ServerContext* context,
                                        const v1::ReadLogsRequest* request,
                                        grpc::ServerWriter<v1::LogChunk>* writer) {
  HF_ADMIT(context);
  return sched::ReadLogs(core_, channels_, context, *request, writer);
}

grpc::Status AgentLinkService::RegisterNode(grpc::ServerContext* context,
                                            const v1::RegisterNodeRequest* request,
                                            v1::RegisterNodeResponse* response) {
  HF_ADMIT(context);
  return sched::RegisterNode(core_, *request, response);
}

grpc::Status AgentLinkService::Beat(grpc::ServerContext* context, const v1::BeatRequest* request,
                                    v1::BeatResponse* response) {
  HF_ADMIT(context);
  return sched::Beat(core_, *request, response);
}

grpc::Status AgentLinkService::ReportEvents(grpc::ServerContext* context,
                                            const v1::ReportEventsRequest* request,
                                            v1::ReportEventsResponse* response) {
  HF_ADMIT(context);
  return sched::ReportEvents(core_, *request, response);
}

grpc::Status AgentLinkService::WatchDesired(grpc::ServerContext* context,
                                            const v1::WatchDesiredRequest* request,
                                            grpc::ServerWriter<v1::DesiredState>* writer) {
  HF_ADMIT(context);
  return sched::WatchDesired(core_, context, *request, writer);
}

}  // namespace holdfast::sched
