// SPDX-License-Identifier: Apache-2.0
// `holdfast run [flags] SCRIPT [its arguments]`: torchrun's command line, read as torchrun reads it
// (torch.distributed.run of PyTorch 2.x): the first word that is no flag ends the flags, and dashes
// and underscores in names are the same. docs/torchrun.md has the table.
#ifndef HOLDFAST_CLI_RUN_REQUEST_H_
#define HOLDFAST_CLI_RUN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::cli {

struct RunRequest {
  uint32_t ranks = 1;                     // --nproc-per-node, counted
  uint32_t nodes_min = 0, nodes_max = 0;  // --nnodes MIN:MAX; 0: not given
  std::optional<uint32_t> node_rank;      // --node-rank
  std::string rdzv_endpoint, master_addr, master_port, local_addr;  // of a run over several nodes
  std::string shared_dir, fence_after;                              // the same
  std::optional<uint32_t> max_restarts;  // not given: the scheduler's default
  std::string role;                      // ROLE_NAME; empty: "default"
  std::vector<uint32_t> shown_ranks;     // --local-ranks-filter; empty: all
  std::string state;                     // --state; empty: a temporary directory
  std::string name;                      // --name
  std::string grace, time_limit;         // durations, as `submit` takes them
  std::string standby = "auto";          // --standby: auto, none, or modules
  std::string notify;                    // a shell command for each incident; empty: none
  std::string modes;                     // --modes; what it does not name is observed
  std::string log_limit;                 // bytes, as `submit` takes them; empty: the default
  bool module = false, no_python = false;
  std::vector<std::string> program;         // the script, module or program and its arguments
  std::vector<std::string> without_effect;  // a sentence for each flag that was taken and ignored
};

// What this machine has, for --nproc-per-node auto, gpu and cpu.
struct MachineSize {
  uint32_t gpus = 0;
  uint32_t cpus = 1;
};
MachineSize ReadMachineSize();

// INVALID_ARGUMENT naming flag and value.
absl::StatusOr<RunRequest> ParseRun(const std::vector<std::string>& arguments,
                                    const MachineSize& machine);

// The flags as `holdfast run --help` shows them.
std::string RunFlagsHelp();

// argv of each rank: the interpreter ($PYTHON_EXEC, else python, else python3 in PATH), unbuffered,
// before a script or module. NOT_FOUND when there is no such interpreter, script or program.
absl::StatusOr<std::vector<std::string>> CommandOf(const RunRequest& request);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_RUN_REQUEST_H_
