// SPDX-License-Identifier: Apache-2.0
#include "agent/core/step_log.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace holdfast::agent {
namespace {

class FakeSource final : public StepSource {
 public:
  bool ReadProgress(rank::Progress* out) const override {
    out->first_step = first;
    out->steps_done = done;
    return !torn_progress;
  }
  bool ReadStep(uint64_t step, rank::StepRecord* out) const override {
    if (step < first || step > done + hidden || step + rank::kStepSlots <= done || step == torn)
      return false;
    *out = {step, step * 8, 5.0 / static_cast<double>(step), 1.5, 0.1, 100.0, 0, 0};
    return true;
  }
  uint64_t first = 1, done = 0, torn = 0, hidden = 0;
  bool torn_progress = false;
};

class StepLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "holdfast-steps-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    path_ = dir_ + "/steps.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<StepLog> Open() {
    absl::StatusOr<std::unique_ptr<StepLog>> log = StepLog::Open(path_);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  std::string Text() {
    std::ifstream in(path_);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // "1:1 1:2 2:2": attempt:step of every line.
  std::string Steps() {
    std::string out;
    std::istringstream in(Text());
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      out += (out.empty() ? "" : " ") + json["attempt"].dump() + ":" + json["step"].dump();
    }
    return out;
  }
  std::string dir_, path_;
};

TEST_F(StepLogTest, OneLineAStep) {
  FakeSource source;
  source.done = 3;
  auto log = Open();
  ASSERT_TRUE(log->Append(1, source, false).ok());
  ASSERT_TRUE(log->Append(1, source, false).ok());
  source.done = 4;
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3 1:4");
}

TEST_F(StepLogTest, NumbersReadBackAsTheyWere) {
  rank::StepRecord record{7, 56, 0.1 + 0.2, std::nan(""), 1e-300, 1.0 / 3.0, 0, 0};
  const nlohmann::json json = nlohmann::json::parse(FormatStepLine(2, record));
  EXPECT_EQ(json["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["lr"].get<double>(), 1e-300);
  EXPECT_EQ(json["samples"].get<uint64_t>(), 56u);
}

TEST_F(StepLogTest, ARestartedAgentContinuesWithoutGapOrDouble) {
  FakeSource source;
  source.done = 5;
  ASSERT_TRUE(Open()->Append(1, source, false).ok());
  source.done = 9;
  auto log = Open();
  EXPECT_EQ(log->last_step(), 5u);
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3 1:4 1:5 1:6 1:7 1:8 1:9");
}

TEST_F(StepLogTest, ATornLastLineIsWrittenAgain) {
  FakeSource source;
  source.done = 3;
  ASSERT_TRUE(Open()->Append(1, source, false).ok());
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 7);
  ASSERT_TRUE(Open()->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3");
}

TEST_F(StepLogTest, TheNextAttemptBeginsWhereItWasRestored) {
  FakeSource source;
  source.done = 6;
  auto log = Open();
  ASSERT_TRUE(log->Append(1, source, true).ok());
  FakeSource next;
  next.first = 5;
  next.done = 7;
  ASSERT_TRUE(log->Append(2, next, false).ok());
  ASSERT_TRUE(log->Append(1, source, true).ok());  // late: the older attempt is done with
  EXPECT_EQ(Steps(), "1:1 1:2 1:3 1:4 1:5 1:6 2:5 2:6 2:7");
}

TEST_F(StepLogTest, AStepBeingWrittenIsWaitedForUnlessTheRankIsGone) {
  FakeSource source;
  source.done = 5;
  source.torn = 4;
  auto log = Open();
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3");
  source.torn = 0;
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3 1:4 1:5");
  EXPECT_EQ(log->lost_steps(), 0u);
}

TEST_F(StepLogTest, ARankThatDiedInsideItsProgressLineLosesNothing) {
  FakeSource source;
  source.done = 3;
  auto log = Open();
  ASSERT_TRUE(log->Append(1, source, false).ok());
  source.torn_progress = true;
  source.hidden = 2;
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3");
  ASSERT_TRUE(log->Append(1, source, true).ok());
  EXPECT_EQ(Steps(), "1:1 1:2 1:3 1:4 1:5");
}

TEST_F(StepLogTest, StepsThatLeftTheRingAreCounted) {
  FakeSource source;
  source.done = 10;
  auto log = Open();
  ASSERT_TRUE(log->Append(1, source, false).ok());
  source.done = 10 + rank::kStepSlots + 5;
  ASSERT_TRUE(log->Append(1, source, false).ok());
  EXPECT_EQ(log->lost_steps(), 5u);
  EXPECT_EQ(log->last_step(), source.done);
}

TEST_F(StepLogTest, AForeignFileIsRefused) {
  std::ofstream(path_) << "not a step\n";
  const absl::Status status = StepLog::Open(path_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(std::string(status.message()).find(path_), std::string::npos);
}

TEST_F(StepLogTest, AnEmptyAttemptWritesNothing) {
  FakeSource source;
  source.first = 0;
  ASSERT_TRUE(Open()->Append(1, source, true).ok());
  EXPECT_EQ(Text(), "");
}

}  // namespace
}  // namespace holdfast::agent
