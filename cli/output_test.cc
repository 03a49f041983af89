// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "cli/exit_code.h"
#include "cli/log_writer.h"

namespace holdfast::cli {
namespace {

TEST(Table, PadsColumnsAndLeavesNoTrailingBlanks) {
  Table table({"A", "LONG", "C"});
  table.Add({"aaaa", "b", ""});
  EXPECT_EQ(table.Text(), "A     LONG  C\naaaa  b");
}

TEST(Times, AreReadable) {
  constexpr int64_t kNow = 1'700'000'000 * kNsPerSec;
  EXPECT_EQ(Ago(0, kNow), "-");
  EXPECT_EQ(Ago(kNow, kNow), "0s ago");
  EXPECT_EQ(Ago(kNow - 75 * kNsPerSec, kNow), "1m15s ago");
  EXPECT_EQ(Ago(kNow - 11'112 * kNsPerSec, kNow), "3h5m ago");
  EXPECT_EQ(Ago(kNow + 5 * kNsPerSec, kNow), "in 5s");
  EXPECT_EQ(Rfc3339(kNow + 7 * kNsPerMs), "2023-11-14T22:13:20.007Z");
  EXPECT_EQ(Rfc3339(0), "-");
  EXPECT_EQ(ShortDuration(12.4), "12 ms");
  EXPECT_EQ(ShortDuration(1234), "1.2 s");
  EXPECT_EQ(ShortDuration(250'000), "4m10s");
}

TEST(Names, LoseTheirPrefixes) {
  EXPECT_EQ(Short(v1::JOB_STATE_RUNNING), "RUNNING");
  EXPECT_EQ(Short(v1::NODE_STATE_LOST), "LOST");
  EXPECT_EQ(Short(v1::PROCESS_DIED), "PROCESS_DIED");
}

TEST(Ends, APreemptedJobHasEndedOnlyWhenItIsNotRequeued) {
  v1::JobStatus job;
  job.set_state(v1::JOB_STATE_PREEMPTED);
  job.mutable_spec()->set_requeue(true);
  EXPECT_FALSE(IsEnded(job));
  job.mutable_spec()->set_requeue(false);
  EXPECT_TRUE(IsEnded(job));
  EXPECT_EQ(ExitCodeOfEnd(job), kExitJobFailed);
  job.set_state(v1::JOB_STATE_DONE);
  EXPECT_EQ(ExitCodeOfEnd(job), kExitDone);
}

v1::LogChunk Chunk(uint64_t attempt, const std::string& data, int64_t offset = -1) {
  v1::LogChunk chunk;
  chunk.set_attempt(attempt);
  chunk.set_data(data);
  chunk.set_has_offset(offset >= 0);
  chunk.set_offset(static_cast<uint64_t>(std::max<int64_t>(0, offset)));
  return chunk;
}

TEST(LogPositions, CutsWhatWasTakenAndTellsWhatIsMissing) {
  LogPositions positions;
  v1::LogChunk chunk = Chunk(1, "abcdef", 10);
  EXPECT_EQ(positions.Take(&chunk), 0u);
  EXPECT_EQ(chunk.data(), "abcdef");
  positions.Opened();
  chunk = Chunk(1, "efgh", 14);
  EXPECT_EQ(positions.Take(&chunk), 0u);
  EXPECT_EQ(chunk.data(), "gh");
  EXPECT_EQ(chunk.offset(), 16u);
  chunk = Chunk(1, "ab", 10);
  EXPECT_EQ(positions.Take(&chunk), 0u);
  EXPECT_EQ(chunk.data(), "");
  chunk = Chunk(1, "z", 28);
  EXPECT_EQ(positions.Take(&chunk), 10u);
  chunk = Chunk(2, "new attempt", 0);
  EXPECT_EQ(positions.Take(&chunk), 0u);
  EXPECT_EQ(chunk.data(), "new attempt");
  v1::ReadLogsRequest request;
  positions.FillResume(&request);
  ASSERT_EQ(request.resume_size(), 2);
  EXPECT_EQ(request.resume(0).offset(), 29u);
}

TEST(LogPositions, WithoutOffsetsAStreamBeginsAtTheFirstByte) {
  LogPositions positions;
  positions.Opened();
  v1::LogChunk chunk = Chunk(1, "one\n");
  positions.Take(&chunk);
  positions.Opened();
  chunk = Chunk(1, "one\ntwo\n");
  EXPECT_EQ(positions.Take(&chunk), 0u);
  EXPECT_EQ(chunk.data(), "two\n");
}

TEST(LogLines, AnEndlessLineIsShownInParts) {
  LogLines lines(true);
  EXPECT_EQ(lines.Add(Chunk(1, "short")), "");
  const std::string shown = lines.Add(Chunk(1, std::string(100'000, 'x')));
  EXPECT_GT(shown.size(), 100'000u);
  EXPECT_EQ(lines.Flush(), "");
}

}  // namespace
}  // namespace holdfast::cli
