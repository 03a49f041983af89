// SPDX-License-Identifier: Apache-2.0
// From the options of `holdfast up` to what it runs.
#ifndef HOLDFAST_CLI_UP_PLAN_H_
#define HOLDFAST_CLI_UP_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/up/supervisor.h"

namespace holdfast::cli {

struct UpOptions {
  int nodes = 1;
  int gpus_per_node = 0;
  bool simulate = false;
  std::string store;    // absolute, or empty for the scheduler's default
  bool owned = false;   // the agents' keepers end with whoever owns this `up` (Ownership)
  std::string bin_dir;  // where the daemons are; empty: beside this program, else in PATH
};
inline constexpr int kSimulatedNodesMax = 64;
inline constexpr uint64_t kSimulatedMemoryBytes = 80ull << 30;

absl::Status CheckUpOptions(const UpOptions& options);

// Writes <state>/nodes/n<i>/devices.json where it is missing. Returns a sentence for each that
// exists with another number of devices: it is kept, since it may be a drill's.
absl::StatusOr<std::vector<std::string>> WriteDevices(const std::string& state,
                                                      const UpOptions& options);

// The scheduler first, then an agent for each node. NOT_FOUND when a program is missing.
absl::StatusOr<std::vector<DaemonSpec>> DaemonsOf(const std::string& state,
                                                  const UpOptions& options);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_PLAN_H_
