// SPDX-License-Identifier: Apache-2.0
#include "cli/testing/fake_scheduler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "proto/channel.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kLookNs =
    20 * kNsPerMs;  // how often a waiting stream asks whether it was cancelled

}  // namespace

void FakeScheduler::Start() {
  ::unlink(socket_.c_str());
  grpc::ServerBuilder builder;
  proto::ConfigureServer(&builder);
  builder.AddListeningPort(endpoint(), grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  ASSERT_NE(server_, nullptr);
}

void FakeScheduler::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

grpc::Status FakeScheduler::Find(const std::string& job, v1::JobStatus* out) const {
  if (!answers_.error.ok()) return answers_.error;
  const auto found = answers_.jobs.find(job);
  if (found == answers_.jobs.end()) return {grpc::StatusCode::NOT_FOUND, "no job " + job};
  *out = found->second;
  return grpc::Status::OK;
}

grpc::Status FakeScheduler::SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) {
  const MutexLock lock(mutex_);
  asked_.submits.push_back(*request);
  if (!answers_.error.ok()) return answers_.error;
  response->set_job(1);
  response->mutable_status()->set_id(1);
  response->mutable_status()->set_state(v1::JOB_STATE_QUEUED);
  response->mutable_status()->set_reason("needs 2 nodes, 1 is free");
  return grpc::Status::OK;
}

grpc::Status FakeScheduler::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                   v1::JobStatus* response) {
  const MutexLock lock(mutex_);
  ++asked_.gets;
  return Find(request->job(), response);
}

grpc::Status FakeScheduler::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) {
  const MutexLock lock(mutex_);
  if (!answers_.error.ok()) return answers_.error;
  // One job a page: the caller has to follow the tokens.
  size_t index = request->page_token().empty() ? 0 : std::stoul(request->page_token());
  std::vector<v1::JobStatus> all;
  for (const auto& [key, job] : answers_.jobs) {
    if (key.rfind("j-", 0) == 0) all.push_back(job);
  }
  if (index < all.size()) *response->add_jobs() = all[index];
  if (++index < all.size()) response->set_next_page_token(std::to_string(index));
  return grpc::Status::OK;
}

grpc::Status FakeScheduler::CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                                      v1::JobStatus* response) {
  const MutexLock lock(mutex_);
  asked_.cancels.push_back(*request);
  return Find(request->job(), response);
}

grpc::Status FakeScheduler::RestartJob(grpc::ServerContext*, const v1::RestartJobRequest* request,
                                       v1::JobStatus* response) {
  const MutexLock lock(mutex_);
  asked_.restarts.push_back(*request);
  return Find(request->job(), response);
}

grpc::Status FakeScheduler::SaveJob(grpc::ServerContext*, const v1::SaveJobRequest* request,
                                    v1::SaveJobResponse* response) {
  const MutexLock lock(mutex_);
  v1::JobStatus job;
  const grpc::Status status = Find(request->job(), &job);
  response->set_job(job.id());
  response->set_attempt(job.attempt());
  return status;
}

grpc::Status FakeScheduler::ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                                            v1::ListCheckpointsResponse* response) {
  const MutexLock lock(mutex_);
  for (const v1::CheckpointInfo& info : answers_.checkpoints) *response->add_checkpoints() = info;
  return answers_.error;
}

grpc::Status FakeScheduler::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                                      v1::ListNodesResponse* response) {
  const MutexLock lock(mutex_);
  for (const v1::NodeStatus& node : answers_.nodes) *response->add_nodes() = node;
  return answers_.error;
}

grpc::Status FakeScheduler::DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                                      v1::NodeStatus* response) {
  const MutexLock lock(mutex_);
  asked_.drains.push_back(*request);
  response->set_name(request->node());
  response->set_state(v1::NODE_STATE_DRAINING);
  response->set_reason(request->reason());
  return answers_.error;
}

grpc::Status FakeScheduler::WatchEvents(grpc::ServerContext* context,
                                        const v1::WatchEventsRequest* request,
                                        grpc::ServerWriter<v1::Event>* writer) {
  const MutexLock lock(mutex_);
  asked_.watches.push_back(*request);
  uint64_t after = request->after_sequence();
  int sent = 0;
  while (!context->IsCancelled()) {
    for (const v1::Event& event : answers_.events) {
      if (event.sequence() <= after) continue;
      if (!writer->Write(event)) return grpc::Status::CANCELLED;
      after = event.sequence();
      if (answers_.events_per_stream > 0 && ++sent >= answers_.events_per_stream) {
        return {grpc::StatusCode::UNAVAILABLE, "broken on purpose"};
      }
    }
    if (!request->follow()) return grpc::Status::OK;
    changed_.WaitForNs(mutex_, kLookNs);
  }
  return grpc::Status::CANCELLED;
}

grpc::Status FakeScheduler::ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest* request,
                                     grpc::ServerWriter<v1::LogChunk>* writer) {
  const MutexLock lock(mutex_);
  const size_t index = std::min(asked_.logs.size(), answers_.log_streams.size() - 1);
  asked_.logs.push_back(*request);
  for (const v1::LogChunk& chunk : answers_.log_streams[index]) writer->Write(chunk);
  return answers_.log_status;
}

}  // namespace holdfast::cli
