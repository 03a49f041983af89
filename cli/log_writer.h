// SPDX-License-Identifier: Apache-2.0
// Turns the chunks of a log stream into output, once each, however often the stream is opened
// again.
#ifndef HOLDFAST_CLI_LOG_WRITER_H_
#define HOLDFAST_CLI_LOG_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "holdfast/v1/scheduler.pb.h"

namespace holdfast::cli {

// Keeps, for each (rank, attempt), the offset of the first byte not yet taken. Pure but for its own
// state.
class LogPositions {
 public:
  // A stream was opened (again). Without offsets in the chunks a stream is taken to begin at the
  // log's first byte.
  void Opened() { received_.clear(); }
  // Cuts off what was taken already; returns how many bytes are missing between what was taken and
  // this chunk.
  uint64_t Take(v1::LogChunk* chunk);
  bool empty() const { return next_.empty(); }
  void FillResume(v1::ReadLogsRequest* request) const;

 private:
  using Key = std::pair<uint32_t, uint64_t>;
  std::map<Key, uint64_t> next_;
  std::map<Key, uint64_t> received_;  // in this opening
};

// "3| " before each line when several ranks are shown. Lines of different ranks are never mixed: a
// line is shown when it is whole.
class LogLines {
 public:
  explicit LogLines(bool with_rank) : with_rank_(with_rank) {}
  // What can be shown now.
  std::string Add(const v1::LogChunk& chunk);
  // The unfinished lines, at the end.
  std::string Flush();

 private:
  const bool with_rank_;
  std::map<uint32_t, std::string> open_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LOG_WRITER_H_
