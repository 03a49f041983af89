// SPDX-License-Identifier: Apache-2.0
// The step log of a job: one JSON line for each finished step of each attempt, appended from the
// recorder of rank 0, without gaps and without doubles across restarts of the agent.
// docs/formats/steps.md.
//
// {"attempt":1,"step":7,"samples":56,"loss":5.25,"grad_norm":1.5,"lr":0.001,"tokens_per_s":1200.5}
// A number that is not finite is null; numbers are the shortest that read back as the same double.
//
// Threads: one.
#ifndef HOLDFAST_AGENT_CORE_STEP_LOG_H_
#define HOLDFAST_AGENT_CORE_STEP_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rank/recorder.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

// One line, with its newline.
std::string FormatStepLine(uint64_t attempt, const rank::StepRecord& record);

// What a finished step is read from; RecorderReader in production.
class StepSource {
 public:
  virtual ~StepSource() = default;
  virtual bool ReadProgress(rank::Progress* out) const = 0;
  virtual bool ReadStep(uint64_t step, rank::StepRecord* out) const = 0;
};

class StepLog {
 public:
  // Opens or creates `path` (its directory exists), cuts off a torn last line and reads the last
  // whole one.
  static absl::StatusOr<std::unique_ptr<StepLog>> Open(const std::string& path);

  // Appends every step of `attempt` that is finished and not yet logged. On an error nothing is
  // half written and the next call tries again. `last` = the rank is gone: a step that cannot be
  // read now never will be.
  absl::Status Append(uint64_t attempt, const StepSource& source, bool last);

  uint64_t last_attempt() const { return attempt_; }
  uint64_t last_step() const { return step_; }
  uint64_t lost_steps() const { return lost_; }  // left the ring before they were read

 private:
  StepLog(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status FindLastLine();
  absl::Status Write(std::string_view text);

  UniqueFd fd_;
  std::string path_;
  uint64_t attempt_ = 0;
  uint64_t step_ = 0;
  uint64_t lost_ = 0;
  uint64_t bytes_ = 0;  // length of the file up to the last whole line
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_STEP_LOG_H_
