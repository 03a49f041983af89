// SPDX-License-Identifier: Apache-2.0
#include "proto/run_key.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "holdfast/v1/scheduler.grpc.pb.h"
#include "proto/channel.h"

namespace holdfast::proto {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Guarded final : public v1::Scheduler::Service {
 public:
  explicit Guarded(std::string key) : key_(std::move(key)) {}
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    const grpc::Status refused = CheckRunKey(key_, *context);
    if (refused.ok()) response->add_nodes()->set_name("n0");
    return refused;
  }

 private:
  const std::string key_;
};

class RunKeyTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/hf-key-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    server_.reset();
    for (const char* name : {"/s.sock", "/key", "/link"}) ::unlink((directory_ + name).c_str());
    ::rmdir(directory_.c_str());
  }
  void Serve(const std::string& key) {
    service_ = std::make_unique<Guarded>(key);
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort("unix:" + directory_ + "/s.sock", grpc::InsecureServerCredentials());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  grpc::Status Ask(const std::string& endpoint, const std::string& key) {
    const auto stub = v1::Scheduler::NewStub(MakeChannel(endpoint, key));
    grpc::ClientContext context;
    PrepareContext(&context, 20'000);
    v1::ListNodesResponse response;
    return stub->ListNodes(&context, v1::ListNodesRequest(), &response);
  }
  std::string Tcp() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string WriteKey(const std::string& text, mode_t mode) {
    const std::string path = directory_ + "/key";
    ::unlink(path.c_str());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::string directory_;
  std::unique_ptr<Guarded> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

TEST_F(RunKeyTest, OnlyWhoHasTheKeyIsAnsweredOverTcp) {
  const std::string key = NewRunKey();
  Serve(key);
  EXPECT_TRUE(Ask(Tcp(), key).ok());
  const grpc::Status none = Ask(Tcp(), "");
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(none.error_message(), HasSubstr("carries none"));
  const grpc::Status wrong = Ask(Tcp(), NewRunKey());
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), HasSubstr("another run"));
  EXPECT_EQ(Ask(Tcp(), key.substr(0, 63)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(Tcp(), key + "0").error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(RunKeyTest, AUnixSocketIsGuardedByTheFileSystem) {
  Serve(NewRunKey());
  EXPECT_TRUE(Ask("unix:" + directory_ + "/s.sock", "").ok());
}

TEST_F(RunKeyTest, WithoutAKeyNothingIsAsked) {
  Serve("");
  EXPECT_TRUE(Ask(Tcp(), "").ok());
  EXPECT_TRUE(Ask(Tcp(), NewRunKey()).ok());
}

TEST_F(RunKeyTest, KeysAreFreshAndWellFormed) {
  const std::string key = NewRunKey();
  EXPECT_EQ(key.size(), 64u);
  EXPECT_NE(key, NewRunKey());
  EXPECT_TRUE(CheckRunKeyForm(key).ok());
  for (const std::string& bad : {std::string(), std::string(31, 'a'), std::string(129, 'a'),
                                 std::string(40, 'a') + "\n", std::string(40, 'a') + "\xc3"}) {
    const absl::Status status = CheckRunKeyForm(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    if (bad.empty()) continue;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(bad)));
  }
}

TEST_F(RunKeyTest, ComparesWholeKeys) {
  EXPECT_TRUE(SameRunKey("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcabc", "xbc"})
    EXPECT_FALSE(SameRunKey("abc", other)) << other;
  EXPECT_FALSE(SameRunKey("", ""));
  EXPECT_FALSE(SameRunKey("", "a"));
}

TEST_F(RunKeyTest, AFileThatOthersCanReadIsRefused) {
  const std::string key = NewRunKey();
  EXPECT_EQ(ReadRunKeyFile(WriteKey(key + "\nendpoint=x\n", 0600)).value(), key);
  for (const mode_t mode : {0640u, 0604u, 0660u}) {
    const auto read = ReadRunKeyFile(WriteKey(key, mode));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("chmod 600"));
    EXPECT_THAT(std::string(read.status().message()), Not(HasSubstr(key)));
  }
  EXPECT_FALSE(ReadRunKeyFile(WriteKey("short", 0600)).ok());
  WriteKey(key, 0600);
  ASSERT_EQ(::symlink((directory_ + "/key").c_str(), (directory_ + "/link").c_str()), 0);
  EXPECT_FALSE(ReadRunKeyFile(directory_ + "/link").ok()) << "a link may lead anywhere";
  EXPECT_EQ(ReadRunKeyFile(directory_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::proto
