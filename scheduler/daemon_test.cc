// SPDX-License-Identifier: Apache-2.0
// The whole daemon in this process, over its real Unix socket and RocksDB, with an agent played by
// the test.
#include "scheduler/daemon.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/channel.h"

namespace holdfast::sched {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDeadlineMs = 20'000;

// Serves the logs of rank 0: two pieces, and an end unless told otherwise. The first `not_yet_`
// calls find none.
class FakeAgentService final : public v1::Agent::Service {
 public:
  grpc::Status ReadLog(grpc::ServerContext*, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::AgentLogChunk>* writer) override {
    if (not_yet_ > 0 && not_yet_-- > 0)
      return {grpc::StatusCode::NOT_FOUND, "no such log on this node"};
    const std::string text = absl::StrCat("attempt ", request->attempt(), " line 1\nline 2\n");
    if (request->offset() < text.size()) {
      v1::AgentLogChunk chunk;
      chunk.set_offset(request->offset());
      chunk.set_data(text.substr(request->offset()));
      writer->Write(chunk);
    }
    if (++calls_ == 1) return {grpc::StatusCode::UNAVAILABLE, "broken on purpose"};
    v1::AgentLogChunk end;
    end.set_end(true);
    end.set_end_reason("exited");
    writer->Write(end);
    return grpc::Status::OK;
  }
  std::atomic<int> calls_{0};
  std::atomic<int> not_yet_{0};
};

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* base = std::getenv("TMPDIR");
    dir_ = std::string(base != nullptr ? base : "/tmp") + "/hf-sched-XXXXXX";
    ASSERT_NE(::mkdtemp(dir_.data()), nullptr);
    options_.state_dir = dir_;
    StartDaemon();
    StartAgent();
  }
  void TearDown() override {
    if (agent_server_ != nullptr)
      agent_server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }
  void StartDaemon() {
    auto daemon = Daemon::Start(options_, &clock_);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    const auto channel = proto::MakeChannel("unix:" + daemon_->socket());
    scheduler_ = v1::Scheduler::NewStub(channel);
    link_ = v1::AgentLink::NewStub(channel);
  }
  void StartAgent() {
    agent_address_ = absl::StrCat("unix:", dir_, "/agent.sock");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(agent_address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&agent_);
    agent_server_ = builder.BuildAndStart();
    ASSERT_NE(agent_server_, nullptr);
  }

  void Register() {
    v1::RegisterNodeRequest request;
    request.set_node("n0");
    request.set_boot_id("boot");
    request.set_address(agent_address_);
    request.set_agent_epoch(1);
    auto* device = request.add_devices();
    device->set_id("n0-gpu0");
    device->set_healthy(true);
    grpc::ClientContext context;
    proto::PrepareContext(&context, kDeadlineMs);
    v1::RegisterNodeResponse response;
    const grpc::Status status = link_->RegisterNode(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.node_lease_ms(), 2500u);
    EXPECT_EQ(response.state_uuid().size(), 32u);
  }
  v1::ReportEventsRequest Events(uint64_t job, v1::RankEvent::Kind kind, v1::RankPhase phase) {
    v1::ReportEventsRequest request;
    request.set_node("n0");
    request.set_boot_id("boot");
    request.set_agent_epoch(1);
    auto* event = request.add_events();
    event->set_kind(kind);
    event->mutable_rank()->set_job(job);
    event->mutable_rank()->set_attempt(1);
    event->mutable_rank()->set_phase(phase);
    return request;
  }
  void Report(const v1::ReportEventsRequest& request) {
    grpc::ClientContext context;
    proto::PrepareContext(&context, kDeadlineMs);
    v1::ReportEventsResponse response;
    const grpc::Status status = link_->ReportEvents(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  uint64_t Submit() {
    v1::SubmitJobRequest request;
    request.set_idempotency_key("key");
    request.mutable_spec()->set_name("job");
    request.mutable_spec()->add_command("true");
    request.mutable_spec()->set_working_directory("/");
    request.mutable_spec()->set_nodes(1);
    request.mutable_spec()->set_gpus_per_node(1);
    grpc::ClientContext context;
    proto::PrepareContext(&context, kDeadlineMs);
    v1::SubmitJobResponse response;
    const grpc::Status status = scheduler_->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.status().spec().uid(), ::getuid());
    return response.job();
  }
  v1::JobStatus Get(const std::string& name) {
    grpc::ClientContext context;
    proto::PrepareContext(&context, kDeadlineMs);
    v1::GetJobRequest request;
    request.set_job(name);
    v1::JobStatus status;
    EXPECT_TRUE(scheduler_->GetJob(&context, request, &status).ok());
    return status;
  }

  std::string dir_;
  DaemonOptions options_;
  SystemClock clock_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<v1::Scheduler::Stub> scheduler_;
  std::unique_ptr<v1::AgentLink::Stub> link_;
  FakeAgentService agent_;
  std::unique_ptr<grpc::Server> agent_server_;
  std::string agent_address_;
};

TEST_F(DaemonTest, AJobLivesThroughARestartOfTheDaemon) {
  Register();
  grpc::ClientContext watch;
  proto::PrepareContext(&watch, kDeadlineMs);
  v1::WatchDesiredRequest request;
  request.set_node("n0");
  request.set_boot_id("boot");
  request.set_agent_epoch(1);
  auto stream = link_->WatchDesired(&watch, request);
  v1::DesiredState desired;
  ASSERT_TRUE(stream->Read(&desired));
  EXPECT_EQ(desired.jobs_size(), 0);
  const uint64_t job = Submit();
  ASSERT_TRUE(stream->Read(&desired)) << "the start was not pushed";
  ASSERT_EQ(desired.jobs_size(), 1);
  EXPECT_EQ(desired.jobs(0).phase(), v1::DESIRED_PHASE_RUN);
  EXPECT_EQ(desired.jobs(0).rendezvous_address(), agent_address_);
  Report(Events(job, v1::RankEvent::KIND_STARTED, v1::RANK_PHASE_RUNNING));
  EXPECT_EQ(Get("job").state(), v1::JOB_STATE_RUNNING);

  daemon_.reset();
  while (stream->Read(&desired)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  StartDaemon();
  Register();
  EXPECT_EQ(Get("j-1").state(), v1::JOB_STATE_RUNNING);
  Report(Events(job, v1::RankEvent::KIND_EXITED, v1::RANK_PHASE_EXITED));
  EXPECT_EQ(Get("job").state(), v1::JOB_STATE_DONE);
}

TEST_F(DaemonTest, EventsAreResumable) {
  Register();
  Submit();
  std::vector<v1::Event> all;
  const auto read = [&](uint64_t after, size_t count, bool follow) {
    grpc::ClientContext context;
    proto::PrepareContext(&context, kDeadlineMs);
    v1::WatchEventsRequest request;
    request.set_after_sequence(after);
    request.set_follow(follow);
    auto stream = scheduler_->WatchEvents(&context, request);
    std::vector<v1::Event> events;
    v1::Event event;
    while (events.size() < count && stream->Read(&event)) events.push_back(event);
    context.TryCancel();
    stream->Finish();
    return events;
  };
  all = read(0, 100, false);
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[0].kind(), "node.ready");
  const std::vector<v1::Event> rest = read(all[0].sequence(), all.size() - 1, true);
  ASSERT_EQ(rest.size(), all.size() - 1);
  EXPECT_EQ(rest[0].sequence(), all[1].sequence());
}

TEST_F(DaemonTest, LogsGoOnAfterABreakAndEndWithAReason) {
  Register();
  const uint64_t job = Submit();
  Report(Events(job, v1::RankEvent::KIND_EXITED, v1::RANK_PHASE_EXITED));
  grpc::ClientContext context;
  proto::PrepareContext(&context, kDeadlineMs);
  v1::ReadLogsRequest request;
  request.set_job("job");
  request.set_tail_lines(-1);
  auto stream = scheduler_->ReadLogs(&context, request);
  std::string text;
  v1::LogChunk chunk, last;
  while (stream->Read(&chunk)) {
    text += chunk.data();
    last = chunk;
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(text, "attempt 1 line 1\nline 2\n") << "a break must neither repeat nor lose lines";
  EXPECT_GE(agent_.calls_.load(), 2);
  EXPECT_TRUE(last.end());
  EXPECT_EQ(last.end_reason(), "job DONE");
}

TEST_F(DaemonTest, AFollowerWaitsForTheLogOfARankThatIsBeingStarted) {
  Register();
  const uint64_t job = Submit();
  agent_.not_yet_ = 3;
  agent_.calls_ = 1;  // no break
  grpc::ClientContext context;
  proto::PrepareContext(&context, kDeadlineMs);
  v1::ReadLogsRequest request;
  request.set_job("job");
  request.set_tail_lines(-1);
  request.set_follow(true);
  auto stream = scheduler_->ReadLogs(&context, request);
  v1::LogChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_EQ(chunk.data(), "attempt 1 line 1\nline 2\n");
  Report(Events(job, v1::RankEvent::KIND_EXITED, v1::RANK_PHASE_EXITED));
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_TRUE(chunk.end());
  EXPECT_EQ(chunk.end_reason(), "job DONE");
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(DaemonTest, ALogThatNeverWasIsMissingWhenTheJobIsOver) {
  Register();
  const uint64_t job = Submit();
  Report(Events(job, v1::RankEvent::KIND_EXITED, v1::RANK_PHASE_EXITED));
  agent_.not_yet_ = 1'000'000;
  grpc::ClientContext context;
  proto::PrepareContext(&context, kDeadlineMs);
  v1::ReadLogsRequest request;
  request.set_job("job");
  request.set_tail_lines(-1);
  request.set_follow(true);
  auto stream = scheduler_->ReadLogs(&context, request);
  v1::LogChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_THAT(chunk.end_reason(), HasSubstr("no such log on this node"));
}

TEST_F(DaemonTest, SaysWhyALogCannotBeRead) {
  Register();
  Submit();
  grpc::ClientContext context;
  proto::PrepareContext(&context, kDeadlineMs);
  v1::ReadLogsRequest request;
  request.set_job("job");
  request.set_attempt(7);
  v1::LogChunk chunk;
  auto stream = scheduler_->ReadLogs(&context, request);
  EXPECT_FALSE(stream->Read(&chunk));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("attempt: 7"));
}

TEST_F(DaemonTest, OneSchedulerForEachState) {
  const auto second = Daemon::Start(options_, &clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(dir_));
}

TEST_F(DaemonTest, BadOptionsAreNamed) {
  DaemonOptions options;
  options.state_dir = dir_ + "/" + std::string(120, 'x');
  EXPECT_THAT(std::string(Daemon::Start(options, &clock_).status().message()), HasSubstr("107"));
  options.state_dir = dir_ + "/other";
  options.listen = "0.0.0.0:0";
  EXPECT_THAT(std::string(Daemon::Start(options, &clock_).status().message()),
              HasSubstr("--insecure"));
  options.listen = "nonsense";
  EXPECT_THAT(std::string(Daemon::Start(options, &clock_).status().message()),
              HasSubstr("HOST:PORT"));
}

TEST_F(DaemonTest, TheSocketIsTheUsersOwn) {
  struct stat st {};
  ASSERT_EQ(::stat(daemon_->socket().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  const uint64_t before = daemon_->Progress();
  const int64_t until = clock_.MonoNs() + kDeadlineMs * kNsPerMs;
  while (daemon_->Progress() == before && clock_.MonoNs() < until) std::this_thread::yield();
  EXPECT_GT(daemon_->Progress(), before) << "the loop that feeds the watchdog does not turn";
}

TEST_F(DaemonTest, AnUnknownAgentMustRegisterFirst) {
  grpc::ClientContext context;
  proto::PrepareContext(&context, kDeadlineMs);
  v1::BeatRequest beat;
  beat.set_node("ghost");
  v1::BeatResponse response;
  EXPECT_EQ(link_->Beat(&context, beat, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace holdfast::sched
