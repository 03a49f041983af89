// SPDX-License-Identifier: Apache-2.0
// Starting a keeper so that it outlives the agent and a stop of the agent's unit, and telling a
// live keeper from what a dead one left in its directory.
#ifndef HOLDFAST_AGENT_KEEPER_PROCESS_H_
#define HOLDFAST_AGENT_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace holdfast::agent {

struct KeeperCommand {
  std::string binary;
  std::string directory;  // of this keeper; exists
  uint64_t job = 0;
  int ranks_max = 64;
  int owner_fd = -1;  // NodeOptions::owner_fd
};

// In a session of its own, with clean signals and no descriptor of ours but the owner's, its output
// in <directory>/keeper.log. The caller reaps it.
absl::StatusOr<pid_t> SpawnKeeper(const KeeperCommand& command);

// The process that <directory>/pid names, if it is a keeper of this directory and alive.
std::optional<pid_t> FindKeeper(const std::string& directory);

// Path of a program beside this one; the bare name (searched in PATH) when it is not there.
std::string SiblingProgram(const std::string& name);
// Path of a file beside this program that can be read; empty when it is not there.
std::string SiblingFile(const std::string& name);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_KEEPER_PROCESS_H_
