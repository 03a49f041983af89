// SPDX-License-Identifier: Apache-2.0
// From a job file and flags to a validated JobSpec. Flags win over the file.
#ifndef HOLDFAST_CLI_SUBMISSION_H_
#define HOLDFAST_CLI_SUBMISSION_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

// What `submit` was given, as typed. Empty: not given.
struct Submission {
  std::string file;  // "-": stdin
  std::string name;
  std::string nodes, gpus_per_node, ranks_per_node, restarts, snapshot_every, persist_every,
      priority;                                            // whole numbers
  std::string grace, time_limit, fence_after, hang_limit;  // durations
  std::string log_bytes;
  std::string fence, trainer, working_directory, from, store, standby, modes;
  std::vector<std::string> environment;  // NAME=VALUE, or NAME to pass the caller's on
  std::optional<bool> requeue;
  bool expects_checkpoints = false;
  std::vector<std::string> command;
};

// The spec with its defaults, paths absolute, uid, gid and groups of the caller. Errors begin with
// the file or the field.
absl::StatusOr<v1::JobSpec> BuildSpec(const Submission& submission);

// `holdfast-worker --check`: a wrong trainer configuration is told here and not by four ranks that
// die. OK (with a hint on stderr) when there is no worker beside this program.
absl::Status CheckTrainer(const v1::JobSpec& spec);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_SUBMISSION_H_
