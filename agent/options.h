// SPDX-License-Identifier: Apache-2.0
// The command line of holdfast-agent, and what must hold before an agent may run: a usable state
// directory that no other agent uses.
#ifndef HOLDFAST_AGENT_OPTIONS_H_
#define HOLDFAST_AGENT_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/node_options.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 4;

// Sets `exit_code` and returns false when the program is to end (help, version, bad usage).
bool ParseCommandLine(int argc, char** argv, NodeOptions* out, int* exit_code);

// Ranges and contradictions; makes paths absolute. INVALID_ARGUMENT naming the option.
absl::Status ValidateOptions(bool insecure, NodeOptions* options);

// Makes the directories, checks that they can be written and are not full, and takes <state>/lock
// for as long as the descriptor lives; sets `options->predecessor_stopped`. Every error names path
// and remedy.
absl::StatusOr<UniqueFd> TakeStateDirectory(NodeOptions* options);

// The last act of an agent that stops in order: leaves a word in its lock, by which the next one
// knows that nobody died.
void MarkStopped(const UniqueFd& lock);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_OPTIONS_H_
