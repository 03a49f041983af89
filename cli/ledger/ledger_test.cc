// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/ledger/ledger_file.h"
#include "cli/ledger/ledger_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::cli {
namespace {

using ::testing::HasSubstr;

v1::LedgerEntry Entry(v1::LedgerEntry::Outcome outcome, int64_t due_ms, int64_t lasted_ms,
                      const std::string& cause = "hang") {
  v1::LedgerEntry entry;
  entry.set_job(1);
  entry.set_name("train");
  entry.set_cause(cause);
  entry.set_fault_class(v1::DATA_STUCK);
  entry.add_ranks(3);
  entry.set_what("rank 3 on n0 waits in read of /data");
  entry.set_mode(v1::CAUSE_MODE_OBSERVE);
  entry.set_cost_ms(30'000);
  entry.set_confidence(0.98);
  entry.set_outcome(outcome);
  entry.set_outcome_text("the job was stopped: cancelled");
  entry.set_due_ms(due_ms);
  entry.set_lasted_ms(lasted_ms);
  return entry;
}

TEST(LedgerReport, PredictionsAreScoredByWhatHappened) {
  const auto scores = ScoreLedger({Entry(v1::LedgerEntry::OUTCOME_ENDED, 30'000, 90'000),
                                   Entry(v1::LedgerEntry::OUTCOME_ENDED, 0, 9'000),
                                   Entry(v1::LedgerEntry::OUTCOME_WENT_ON, 0, 9'000),
                                   Entry(v1::LedgerEntry::OUTCOME_WENT_ON, 30'000, 45'000),
                                   Entry(v1::LedgerEntry::OUTCOME_OPEN, 0, 0),
                                   Entry(v1::LedgerEntry::OUTCOME_ACTED, 30'000, 31'000),
                                   Entry(v1::LedgerEntry::OUTCOME_OPEN, 0, 0, "stopped")});
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].cause, "hang");
  EXPECT_EQ(scores[0].found, 6);
  EXPECT_EQ(scores[0].right, 1);
  EXPECT_EQ(scores[0].wrong, 1);
  EXPECT_EQ(scores[0].not_due, 2);
  EXPECT_EQ(scores[0].open, 1);
  EXPECT_EQ(scores[0].acted, 1);
  EXPECT_EQ(scores[0].saved_ms, 60'000);
  EXPECT_EQ(scores[1].cause, "stopped");
}

TEST(LedgerReport, ACauseIsPromotedWhenItWasRightOftenAndNeverWrong) {
  std::vector<v1::LedgerEntry> entries(kRightForPromotion,
                                       Entry(v1::LedgerEntry::OUTCOME_ENDED, 30'000, 90'000));
  EXPECT_TRUE(ScoreLedger(entries)[0].promote);
  EXPECT_THAT(LedgerSummary(ScoreLedger(entries)), HasSubstr("--modes hang=act"));
  entries.push_back(Entry(v1::LedgerEntry::OUTCOME_WENT_ON, 30'000, 45'000));
  EXPECT_FALSE(ScoreLedger(entries)[0].promote);
  EXPECT_THAT(LedgerSummary(ScoreLedger(entries)), HasSubstr("cut down jobs that lived"));
}

TEST(LedgerReport, TheTableHasPredictionAndOutcomeSideBySide) {
  const std::string text = LedgerTable({Entry(v1::LedgerEntry::OUTCOME_ENDED, 30'000, 90'000)}, 0);
  EXPECT_THAT(text, HasSubstr("DATA_STUCK"));
  EXPECT_THAT(text, HasSubstr("98%"));
  EXPECT_THAT(text, HasSubstr("right: the job was stopped: cancelled"));
}

class LedgerFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = (std::filesystem::temp_directory_path() / "hf-ledger-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir_.data()), nullptr);
    path_ = dir_ + "/sub/ledger.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string dir_, path_;
};

TEST_F(LedgerFileTest, WhatIsAppendedIsReadAgainInOrder) {
  size_t skipped = 0;
  EXPECT_EQ(ReadLedger(path_, &skipped).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)}).ok());
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_WENT_ON, 0, 3)}).ok());
  const auto entries = ReadLedger(path_, &skipped);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].lasted_ms(), 2);
  EXPECT_EQ((*entries)[1].outcome(), v1::LedgerEntry::OUTCOME_WENT_ON);
  EXPECT_EQ(skipped, 0u);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LedgerFileTest, LinesThatAreNoEntriesAreCountedAndTheRestIsRead) {
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)}).ok());
  std::ofstream(path_, std::ios::app) << "half a li\n{}\n";
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 4)}).ok());
  size_t skipped = 0;
  EXPECT_EQ(ReadLedger(path_, &skipped)->size(), 2u);
  EXPECT_EQ(skipped, 2u);
}

TEST_F(LedgerFileTest, AFullFileMakesRoomAndNothingNewIsLost) {
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)}).ok());
  std::filesystem::resize_file(path_, kLedgerFileBytesMax);
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 4)}).ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".old"));
  EXPECT_LT(std::filesystem::file_size(path_), 4096u);
  size_t skipped = 0;
  EXPECT_EQ(ReadLedger(path_, &skipped)->back().lasted_ms(), 4);
}

TEST_F(LedgerFileTest, WhatNeverAnswersIsRefused) {
  size_t skipped = 0;
  const std::string fifo = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::vector<v1::LedgerEntry> entries = {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)};
  EXPECT_THAT(std::string(AppendLedger(fifo, entries).message()), HasSubstr("no regular file"));
  EXPECT_THAT(std::string(ReadLedger(fifo, &skipped).status().message()),
              HasSubstr("no regular file"));
  EXPECT_THAT(std::string(ReadLedger(dir_, &skipped).status().message()),
              HasSubstr("no regular file"));
  const std::string held = dir_ + "/held";
  const int fd = ::open(held.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_EQ(AppendLedger(held, entries).code(), absl::StatusCode::kUnavailable);
  ::close(fd);
  EXPECT_TRUE(AppendLedger(held, entries).ok());
}

TEST_F(LedgerFileTest, HalfALineOfAnotherIsNoPartOfOurs) {
  std::filesystem::create_directories(dir_ + "/sub");
  std::ofstream(path_) << "{\"id\": \"3\", \"ca";
  ASSERT_TRUE(AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)}).ok());
  size_t skipped = 0;
  EXPECT_EQ(ReadLedger(path_, &skipped)->size(), 1u);
  EXPECT_EQ(skipped, 1u);
}

TEST_F(LedgerFileTest, AnUnwritablePlaceIsNamed) {
  std::ofstream(dir_ + "/sub") << "a file";
  const absl::Status status = AppendLedger(path_, {Entry(v1::LedgerEntry::OUTCOME_ENDED, 1, 2)});
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir_ + "/sub"));
}

}  // namespace
}  // namespace holdfast::cli
