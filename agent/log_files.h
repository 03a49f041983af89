// SPDX-License-Identifier: Apache-2.0
// Reading what the keeper wrote of one rank's output: <base>, <base>.tail.old and <base>.tail are
// one stream with a hole where the middle of a long output was let go. Positions are bytes of that
// stream. Any thread; no state.
#ifndef HOLDFAST_AGENT_LOG_FILES_H_
#define HOLDFAST_AGENT_LOG_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::agent {

std::string LogBase(const std::string& log_dir, uint32_t rank, uint64_t attempt);

struct LogPiece {
  uint64_t offset = 0;  // of data[0]; later than what was asked for when a hole was jumped
  std::string data;     // empty at the end of what is there
};
// Up to `bytes_max` bytes at `offset`. NOT_FOUND when the rank never wrote a log here.
absl::StatusOr<LogPiece> ReadLogAt(const std::string& base, uint64_t offset, size_t bytes_max);

// Where the last `lines` lines begin (looking back at most 4 MiB); lines < 0: 0.
absl::StatusOr<uint64_t> TailOffset(const std::string& base, int64_t lines);

// Remembers in <base>.times how long the log was at `now_wall_ns`, if it grew since the last mark.
// The file stays below 64 KiB: of a long life every second mark is let go, again and again.
void MarkLogTime(const std::string& base, int64_t now_wall_ns);

// How long the log was at `wall_ns`, by the newest mark before it; 0 when there is none.
uint64_t LogOffsetAt(const std::string& base, int64_t wall_ns);

// The last bytes as text, whole lines where possible; empty when there is nothing.
std::string LogTail(const std::string& base, size_t bytes_max);

// Copies the first kFirstFailureHeadBytes and the last kFirstFailureTailBytes into `directory`
// (made if missing) as rank<r>.head.log and rank<r>.tail.log, and `note` as why.txt. What is there
// already stays: the first failure is the evidence.
absl::Status KeepFailure(const std::string& base, const std::string& directory, uint32_t rank,
                         const std::string& note);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_LOG_FILES_H_
