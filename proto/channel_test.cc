// SPDX-License-Identifier: Apache-2.0
#include "proto/channel.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/limits.h"
#include "holdfast/v1/scheduler.grpc.pb.h"

namespace holdfast::proto {
namespace {

class NodesService final : public v1::Scheduler::Service {
 public:
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    response->add_nodes()->set_name("n0");
    return grpc::Status::OK;
  }
  grpc::Status DrainNode(grpc::ServerContext* context, const v1::DrainNodeRequest*,
                         v1::NodeStatus*) override {
    while (!context->IsCancelled()) std::this_thread::yield();  // answers never
    return grpc::Status::CANCELLED;
  }
  grpc::Status WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest*,
                           grpc::ServerWriter<v1::Event>* writer) override {
    v1::Event event;
    event.set_sequence(1);
    writer->Write(event);
    // Quiet for longer than three keepalive pings, then one more event.
    const SystemClock clock;
    const int64_t until = clock.MonoNs() + 7 * kNsPerSec;
    while (clock.MonoNs() < until && !context->IsCancelled()) ::usleep(20'000);
    event.set_sequence(2);
    writer->Write(event);
    return grpc::Status::OK;
  }
};

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/hf-channel-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
    endpoint_ = "unix:" + directory_ + "/s.sock";
  }
  void TearDown() override {
    Stop();
    ::unlink((directory_ + "/s.sock").c_str());
    ::rmdir(directory_.c_str());
  }
  void Start() {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort(endpoint_, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  absl::Status Call(v1::Scheduler::Stub* stub, int64_t deadline_ms, bool wait_for_ready = true) {
    grpc::ClientContext context;
    PrepareContext(&context, deadline_ms, wait_for_ready);
    v1::ListNodesResponse response;
    return FromGrpc(stub->ListNodes(&context, {}, &response));
  }

  std::string directory_;
  std::string endpoint_;
  NodesService service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ChannelTest, ACallMadeWhileTheServerIsAwaySucceedsWhenItReturns) {
  Start();
  const auto stub = v1::Scheduler::NewStub(MakeChannel(endpoint_));
  ASSERT_TRUE(Call(stub.get(), 20'000).ok());
  Stop();
  std::thread returns([this] {
    ::usleep(300'000);
    Start();
  });
  const absl::Status status = Call(stub.get(), 20'000);
  returns.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ChannelTest, AProbeFailsAtOnceAndAWaitingCallAtItsDeadline) {
  const auto stub = v1::Scheduler::NewStub(MakeChannel(endpoint_));
  EXPECT_EQ(Call(stub.get(), 20'000, /*wait_for_ready=*/false).code(),
            absl::StatusCode::kUnavailable);
  const SystemClock clock;
  const int64_t begin = clock.MonoNs();
  EXPECT_EQ(Call(stub.get(), 200).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(clock.MonoNs() - begin, 190 * kNsPerMs);
}

TEST_F(ChannelTest, ASilentServerEndsAtTheDeadline) {
  Start();
  const auto stub = v1::Scheduler::NewStub(MakeChannel(endpoint_));
  grpc::ClientContext context;
  PrepareContext(&context, 300);
  v1::NodeStatus response;
  EXPECT_EQ(FromGrpc(stub->DrainNode(&context, {}, &response)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ChannelTest, KeepalivePingsDoNotEndAQuietStream) {
  Start();
  const auto stub = v1::Scheduler::NewStub(MakeChannel(endpoint_));
  grpc::ClientContext context;
  PrepareContext(&context, 60'000);
  auto reader = stub->WatchEvents(&context, {});
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(reader->Read(&event)) << reader->Finish().error_message();
  EXPECT_EQ(event.sequence(), 2u);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(Status, CodesSurviveBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
  }
}

TEST(IdempotencyKey, IsLongAndNeverTheSame) {
  std::set<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.insert(NewIdempotencyKey());
  EXPECT_EQ(keys.size(), 1000u);
  EXPECT_EQ(keys.begin()->size(), 32u);
}

}  // namespace
}  // namespace holdfast::proto
