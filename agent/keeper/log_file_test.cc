// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/log_file.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace holdfast::keeper {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class LogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* tmp = getenv("TMPDIR");
    std::string pattern = std::string(tmp != nullptr ? tmp : "/tmp") + "/holdfast-log-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    base_ = dir_ + "/rank0.1.log";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string dir_, base_;
  LogFile log_;
};

TEST_F(LogFileTest, LittleOutputIsOneFile) {
  ASSERT_EQ(log_.Open(base_, 1 << 20, getuid(), getgid()), 0);
  log_.Append("hello ", 6);
  log_.Append("there\n", 6);
  log_.Close();
  EXPECT_EQ(Read(base_), "hello there\n");
  EXPECT_FALSE(std::filesystem::exists(base_ + ".tail"));
}

TEST_F(LogFileTest, HeadAndTailOfMuchOutputAreKeptWithinTheLimit) {
  const uint64_t limit = 4 << 20;
  ASSERT_EQ(log_.Open(base_, limit, getuid(), getgid()), 0);
  std::string all;
  while (all.size() < 15u << 20) all += std::to_string(all.size()) + " is where this line begins\n";
  for (size_t at = 0; at < all.size(); at += 50'000)
    log_.Append(all.data() + at, std::min<size_t>(50'000, all.size() - at));
  log_.Close();
  const std::string head = Read(base_);
  EXPECT_EQ(head, all.substr(0, limit / 2));
  size_t total = head.size();
  for (const char* name : {".tail", ".tail.old"}) {
    const std::string part = Read(base_ + name);
    total += part.size();
    unsigned long long begin = 0;
    ASSERT_EQ(sscanf(part.c_str(), "[holdfast: output goes on here at byte %llu]", &begin), 1)
        << name;
    const std::string bytes = part.substr(part.find('\n') + 1);
    EXPECT_EQ(bytes, all.substr(begin, bytes.size())) << name;
    if (name == std::string(".tail")) {
      EXPECT_EQ(begin + bytes.size(), all.size());
    }
  }
  EXPECT_LE(total, limit + 4096);
  EXPECT_GE(total - head.size(), kLogTailBytesMin);
}

TEST_F(LogFileTest, ASmallLimitStillKeepsTheLeastThatIsPromised) {
  ASSERT_EQ(log_.Open(base_, 1, getuid(), getgid()), 0);
  const std::string block(100'000, 'x');
  for (int i = 0; i < 60; ++i) log_.Append(block.data(), block.size());
  log_.Close();
  EXPECT_EQ(Read(base_).size(), kLogHeadBytesMin);
  EXPECT_GE(Read(base_ + ".tail").size() + Read(base_ + ".tail.old").size(), kLogTailBytesMin);
}

TEST_F(LogFileTest, WhatTheDiskDoesNotTakeIsDroppedAndCounted) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(log_.Open(base_, 1 << 20, getuid(), getgid()), 0);
  const std::string block(5000, 'x');
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  log_.Append(block.data(), block.size());
  EXPECT_EQ(log_.dropped_bytes(), 4000u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  log_.Append("room again\n", 11);
  EXPECT_EQ(log_.dropped_bytes(), 4000u);
  log_.Close();
  const std::string text = Read(base_);
  EXPECT_EQ(text.substr(0, 1011), block.substr(0, 1000) + "room again\n");
  EXPECT_NE(text.find("4000 bytes of output could not be written"), std::string::npos);
}

TEST_F(LogFileTest, ALinkInThePlaceOfTheLogIsNotFollowed) {
  std::ofstream(dir_ + "/precious") << "precious";
  std::filesystem::create_symlink(dir_ + "/precious", base_);
  EXPECT_EQ(log_.Open(base_, 1 << 20, getuid(), getgid()), ELOOP);
  EXPECT_EQ(Read(dir_ + "/precious"), "precious");
  EXPECT_EQ(log_.Open(dir_ + "/missing/x.log", 1 << 20, getuid(), getgid()), ENOENT);
}

}  // namespace
}  // namespace holdfast::keeper
