// SPDX-License-Identifier: Apache-2.0
// Starts a daemon under `holdfast up`.
#ifndef HOLDFAST_CLI_UP_SPAWN_H_
#define HOLDFAST_CLI_UP_SPAWN_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::cli {

inline constexpr int kInheritedFd = 3;

struct SpawnRequest {
  std::vector<std::string> argv;         // argv[0] is a path
  std::vector<std::string> environment;  // whole
  int output_fd = -1;                    // stdout and stderr; -1: ours
  int inherited_fd = -1;                 // becomes kInheritedFd of the child; -1: none
  bool dies_with_caller = true;          // killed when the calling thread dies
};

// The child has a process group of its own (Ctrl-C goes to `up` alone), no signal blocked, default
// dispositions and /dev/null as stdin. An exec that fails is an error here, not an exit code later.
absl::StatusOr<pid_t> SpawnChild(const SpawnRequest& request);

// The environment of this process without the variables in `without` (names), then `with` ("K=V").
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& without,
                                         const std::vector<std::string>& with);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_SPAWN_H_
