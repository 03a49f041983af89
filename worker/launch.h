// SPDX-License-Identifier: Apache-2.0
// From the command line and the environment to a running trainer, and from its end to an exit code
// (worker/exit_codes.h).
#ifndef HOLDFAST_WORKER_LAUNCH_H_
#define HOLDFAST_WORKER_LAUNCH_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer.h"

namespace holdfast::worker {

// The contents of HOLDFAST_FAULT_FILE: {"drop_micro_batch":{"step":5,"rank":0}}. Other fields are
// errors.
absl::StatusOr<DropMicroBatch> ParseFaultFile(std::string_view text);

// Everything that can be known to be wrong before a rank starts: configuration, ranks, data files
// and their largest token.
absl::Status CheckConfiguration(const std::string& path, int64_t ranks);

// Runs this process's rank to its end; returns the exit code. Errors are on stderr and in the
// recorder's last words.
int RunWorker(const std::string& config_path);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_LAUNCH_H_
