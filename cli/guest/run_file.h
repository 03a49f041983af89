// SPDX-License-Identifier: Apache-2.0
// How the tasks of a Slurm step find each other: a file in the directory they share, of mode 0600,
// written by the first task once its scheduler listens and removed by it at the end.
//
//   line 1   the run's key (proto/run_key.h)
//   line 2   HOST:PORT of the scheduler
#ifndef HOLDFAST_CLI_GUEST_RUN_FILE_H_
#define HOLDFAST_CLI_GUEST_RUN_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::cli {

struct RunFile {
  std::string key;
  std::string endpoint;
};

// Whole or not at all: written beside, then renamed.
absl::Status WriteRunFile(const std::string& path, const RunFile& file);
// NOT_FOUND while it is not there yet; FAILED_PRECONDITION when others could read it.
absl::StatusOr<RunFile> ReadRunFile(const std::string& path);
// Looks until it is there: file systems that are shared between machines do not tell of changes.
// DEADLINE_EXCEEDED naming the path.
absl::StatusOr<RunFile> WaitForRunFile(const std::string& path, int64_t wait_ms);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_RUN_FILE_H_
