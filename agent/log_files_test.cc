// SPDX-License-Identifier: Apache-2.0
#include "agent/log_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/testing/temp_dir.h"

namespace holdfast::agent {
namespace {

class LogFilesTest : public ::testing::Test {
 protected:
  void Append(const std::string& text, const std::string& suffix = "") {
    std::ofstream(base_ + suffix, std::ios::app) << text;
  }

  std::string From(uint64_t offset) {
    const absl::StatusOr<LogPiece> piece = ReadLogAt(base_, offset, 1 << 20);
    return piece.ok() ? piece->data : piece.status().ToString();
  }

  testing::TempDir dir_;
  const std::string base_ = LogBase(dir_.path(), 3, 1);
};

TEST_F(LogFilesTest, TheLastLines) {
  Append("one\ntwo\nthree\n");
  EXPECT_EQ(From(*TailOffset(base_, 2)), "two\nthree\n");
  EXPECT_EQ(From(*TailOffset(base_, 9)), "one\ntwo\nthree\n");
  EXPECT_EQ(From(*TailOffset(base_, 0)), "");
  EXPECT_EQ(LogTail(base_, 7), "three\n");
  EXPECT_FALSE(TailOffset(base_ + "x", 1).ok());
}

TEST_F(LogFilesTest, AHoleIsJumped) {
  Append("0123456789");
  Append("[holdfast: output goes on here at byte 50]\nlast", ".tail");
  EXPECT_EQ(ReadLogAt(base_, 4, 100)->data, "456789");
  EXPECT_EQ(ReadLogAt(base_, 10, 100)->offset, 50u);
  EXPECT_EQ(From(10), "last");
}

TEST_F(LogFilesTest, WhatWasWrittenAfterAMoment) {
  EXPECT_EQ(LogOffsetAt(base_, 100), 0u) << "no log at all";
  MarkLogTime(base_, 5);
  Append("old\n");
  MarkLogTime(base_, 10);
  MarkLogTime(base_, 15);  // nothing new
  Append("new\n");
  MarkLogTime(base_, 20);
  Append("newest\n");
  EXPECT_EQ(From(LogOffsetAt(base_, 9)), "old\nnew\nnewest\n");
  EXPECT_EQ(From(LogOffsetAt(base_, 10)), "new\nnewest\n");
  EXPECT_EQ(From(LogOffsetAt(base_, 19)), "new\nnewest\n");
  EXPECT_EQ(From(LogOffsetAt(base_, 1000)), "newest\n");
}

TEST_F(LogFilesTest, TheMarksOfALongLifeGrowCoarser) {
  constexpr int kMarks = 10'000;
  for (int i = 1; i <= kMarks; ++i) {
    Append("x");
    MarkLogTime(base_, 10 * i);
  }
  EXPECT_LE(std::ifstream(base_ + ".times", std::ios::ate).tellg(), 64 << 10);
  // Never too late, and the newest marks are all there.
  for (const int i : {1, 2, 50, 4097, 9000}) EXPECT_LE(LogOffsetAt(base_, 10 * i), uint64_t(i));
  EXPECT_GE(LogOffsetAt(base_, 50'000), 4'950u);
  EXPECT_EQ(LogOffsetAt(base_, 10 * kMarks), uint64_t{kMarks});
}

TEST_F(LogFilesTest, ATornMarkIsLeftOut) {
  Append("one\n");
  MarkLogTime(base_, 10);
  std::ofstream(base_ + ".times", std::ios::app) << "torn";
  EXPECT_EQ(LogOffsetAt(base_, 10), 4u);
  Append("two\n");
  MarkLogTime(base_, 20);
  EXPECT_EQ(From(LogOffsetAt(base_, 10)), "two\n");
  EXPECT_EQ(LogOffsetAt(base_, 20), 8u);
}

}  // namespace
}  // namespace holdfast::agent
