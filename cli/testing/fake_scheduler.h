// SPDX-License-Identifier: Apache-2.0
// A scheduler of the test's own making, served on a Unix socket: it answers what the test put in,
// remembers what it was asked, and can be stopped and started or told to break its streams.
#ifndef HOLDFAST_CLI_TESTING_FAKE_SCHEDULER_H_
#define HOLDFAST_CLI_TESTING_FAKE_SCHEDULER_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "holdfast/v1/scheduler.grpc.pb.h"

namespace holdfast::cli {

class FakeScheduler final : public v1::Scheduler::Service {
 public:
  explicit FakeScheduler(std::string socket) : socket_(std::move(socket)) {}
  ~FakeScheduler() override { Stop(); }

  void Start();
  void Stop();
  std::string endpoint() const { return "unix:" + socket_; }

  // What it answers. Set before the call that needs it, or under the lock of Change.
  struct Answers {
    std::map<std::string, v1::JobStatus> jobs;  // by id and by name
    std::vector<v1::CheckpointInfo> checkpoints;
    std::vector<v1::NodeStatus> nodes;
    std::vector<v1::Event> events;
    int events_per_stream = 0;  // > 0: a stream breaks after so many
    // Each stream of logs takes the next script (the last one again and again); OK at its end
    // unless `log_status` says else.
    std::vector<std::vector<v1::LogChunk>> log_streams;
    grpc::Status log_status;
    grpc::Status error;  // not OK: the answer of every unary call
  };
  template <typename F>
  void Change(F change) {
    const MutexLock lock(mutex_);
    change(&answers_);
    changed_.NotifyAll();
  }
  // What it was asked.
  struct Asked {
    std::vector<v1::SubmitJobRequest> submits;
    std::vector<v1::CancelJobRequest> cancels;
    std::vector<v1::RestartJobRequest> restarts;
    std::vector<v1::DrainNodeRequest> drains;
    std::vector<v1::WatchEventsRequest> watches;
    std::vector<v1::ReadLogsRequest> logs;
    int gets = 0;
  };
  Asked asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }

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
  grpc::Status WatchEvents(grpc::ServerContext*, const v1::WatchEventsRequest*,
                           grpc::ServerWriter<v1::Event>*) override;
  grpc::Status ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest*,
                        grpc::ServerWriter<v1::LogChunk>*) override;

 private:
  grpc::Status Find(const std::string& job, v1::JobStatus* out) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string socket_;
  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mutex_;
  CondVar changed_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
  Asked asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_TESTING_FAKE_SCHEDULER_H_
