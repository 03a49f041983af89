// SPDX-License-Identifier: Apache-2.0
#include "cli/state_dir.h"

#include <gtest/gtest.h>

namespace holdfast::cli {
namespace {

Surroundings User() {
  Surroundings s;
  s.home = "/home/u";
  s.working_directory = "/here";
  return s;
}

TEST(StateDirectory, FlagThenEnvironmentThenUser) {
  Surroundings s = User();
  EXPECT_EQ(*StateDirectory(s), "/home/u/.local/state/holdfast");
  s.root = true;
  EXPECT_EQ(*StateDirectory(s), "/var/lib/holdfast");
  s.state_env = "env";
  EXPECT_EQ(*StateDirectory(s), "/here/env");
  s.state_flag = "/x//y/./z/";
  EXPECT_EQ(*StateDirectory(s), "/x/y/z");
}

TEST(StateDirectory, WithoutAHomeItAsksForOne) {
  Surroundings s = User();
  s.home = "";
  EXPECT_EQ(StateDirectory(s).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Endpoint, FlagThenStateFlagThenEnvironmentThenState) {
  Surroundings s = User();
  EXPECT_EQ(*Endpoint(s), "unix:/home/u/.local/state/holdfast/scheduler.sock");
  s.endpoint_env = "host:1";
  EXPECT_EQ(*Endpoint(s), "host:1");
  s.state_flag = "/s";
  EXPECT_EQ(*Endpoint(s), "unix:/s/scheduler.sock");
  s.endpoint_flag = "other:2";
  EXPECT_EQ(*Endpoint(s), "other:2");
}

TEST(Endpoint, WhatIsNoAddressIsAnErrorThatNamesIt) {
  for (const char* word : {"nonsense", "unix:relative", "host:", "host:0", "host:65536", "host:x",
                           ":5000", "http://host:1"}) {
    Surroundings s = User();
    s.endpoint_flag = word;
    const absl::Status status = Endpoint(s).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << word;
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status.message();
  }
  Surroundings s = User();
  s.endpoint_flag = "[::1]:5000";
  EXPECT_TRUE(Endpoint(s).ok());
}

TEST(Endpoint, APathTooLongIsAnErrorWithTheLimit) {
  Surroundings s = User();
  s.state_flag = "/" + std::string(92, 'x');  // 93 + "/scheduler.sock" is 108
  const std::string message(Endpoint(s).status().message());
  EXPECT_NE(message.find("too long"), std::string::npos) << message;
  EXPECT_NE(message.find("107"), std::string::npos) << message;
  s.state_flag.pop_back();
  EXPECT_TRUE(Endpoint(s).ok());
}

TEST(AbsolutePath, CleansDotsAndSlashesButFollowsNoParent) {
  EXPECT_EQ(AbsolutePath("a/./b//c", "/w"), "/w/a/b/c");
  EXPECT_EQ(AbsolutePath("../a", "/w"), "/w/../a");
  EXPECT_EQ(AbsolutePath("/", "/w"), "/");
}

TEST(FindProgram, LooksOnlyWhereItIsTold) {
  EXPECT_EQ(*FindProgram("sh", "/bin"), "/bin/sh");
  EXPECT_EQ(FindProgram("no-such-program", "/bin").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::cli
