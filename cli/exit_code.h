// SPDX-License-Identifier: Apache-2.0
// What the command line answers to a script. Part of the interface: never renumbered.
#ifndef HOLDFAST_CLI_EXIT_CODE_H_
#define HOLDFAST_CLI_EXIT_CODE_H_

#include "absl/status/status.h"

namespace holdfast::cli {

enum ExitCode : int {
  kExitDone = 0,
  kExitJobFailed = 1,      // wait and submit --wait: the job ended FAILED or CANCELLED
  kExitUsage = 2,          // wrong arguments, wrong job file
  kExitNotFound = 3,       // no such job, node, program
  kExitRefused = 4,        // understood, but not now or not for you; also an internal error
  kExitUnreachable = 5,    // no scheduler, or a stream that broke
  kExitInterrupted = 130,  // Ctrl-C while following: the job goes on
};

inline ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitRefused;
  }
}

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_EXIT_CODE_H_
