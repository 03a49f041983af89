// SPDX-License-Identifier: Apache-2.0
// Copies the logs of one job to stdout until their end, over as many streams as it takes: a
// scheduler that is away is waited for, and nothing is shown twice or left out unseen.
#ifndef HOLDFAST_CLI_LOG_READER_H_
#define HOLDFAST_CLI_LOG_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/log_writer.h"

namespace holdfast::cli {

struct LogOptions {
  std::string job;
  std::vector<uint32_t> ranks;
  std::string node;
  uint64_t attempt = 0;
  int64_t tail = -1;
  int64_t since_wall_ns = 0;  // only what was written later; 0: all
  bool follow = false;
  bool tell_end = true;  // why the log ended, on stderr
};

class LogReader {
 public:
  LogReader(SchedulerClient* client, InterruptGuard* guard, LogOptions options, bool json,
            bool with_rank);

  // To the end of the logs, or kExitInterrupted: then it can be called again and goes on where it
  // was. Other codes are errors that were told.
  int Run();

 private:
  int64_t LimitMs() const;
  absl::Status Broken() const;
  bool CanResume() const;
  absl::Status ReadOnce();
  bool Show(v1::LogChunk chunk);
  int End();

  SchedulerClient* const client_;
  InterruptGuard* const guard_;
  const LogOptions options_;
  const bool json_;
  LogPositions positions_;
  LogLines lines_;
  int barren_ = 0;  // streams in a row that ended without a byte and without an end
  bool offsets_known_ = false;
  bool ended_ = false;
  bool heard_ = false;
  bool told_ = false;
  bool reader_gone_ = false;
  std::string end_reason_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LOG_READER_H_
