// SPDX-License-Identifier: Apache-2.0
// Runs a sibling program to its end, or becomes it.
#ifndef HOLDFAST_BASE_SUBPROCESS_H_
#define HOLDFAST_BASE_SUBPROCESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast {

struct ProgramResult {
  int exit_code = 0;         // 128 + signal when killed
  std::string error_output;  // its stderr, the first kErrorOutputBytesMax
  std::string output;        // its stdout, the first output_bytes_max
};
inline constexpr size_t kErrorOutputBytesMax = 64 << 10;

struct ProgramOptions {
  int64_t deadline_ms = 0;               // then it is killed, with its process group
  std::string input;                     // its stdin
  std::vector<std::string> environment;  // whole; empty: ours
  size_t output_bytes_max = 0;           // 0: stdout is discarded
};
// argv[0] is a path. DEADLINE_EXCEEDED after it was killed at the deadline.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& argv,
                                         const ProgramOptions& options);

// Replaces this process; returns only when that failed.
absl::Status BecomeProgram(const std::vector<std::string>& argv);

}  // namespace holdfast

#endif  // HOLDFAST_BASE_SUBPROCESS_H_
