// SPDX-License-Identifier: Apache-2.0
// Logs outlive their job: when a keeper's directory is removed its logs move to <node
// state>/logs/j-42, and the oldest beyond kLogsKeptJobs jobs are removed.
#ifndef HOLDFAST_AGENT_KEPT_LOGS_H_
#define HOLDFAST_AGENT_KEPT_LOGS_H_

#include <string>

#include "absl/status/status.h"
#include "agent/node_options.h"

namespace holdfast::agent {

inline constexpr size_t kLogsKeptJobs = 64;

std::string KeptLogDir(const NodeOptions& options, JobId job);
absl::Status KeepLogs(const std::string& log_dir, const NodeOptions& options, JobId job);

// `text` with every byte that is not UTF-8 replaced by '?': what a rank prints is bytes, a protobuf
// string is not.
std::string ToUtf8(const std::string& text);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_KEPT_LOGS_H_
