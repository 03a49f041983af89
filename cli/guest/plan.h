// SPDX-License-Identifier: Apache-2.0
// A run over several nodes that somebody else manages: a step of Slurm, or the pods of a job. From
// the environment and the flags to what this task does in it. Pure. docs/slurm.md tells users.
#ifndef HOLDFAST_CLI_GUEST_PLAN_H_
#define HOLDFAST_CLI_GUEST_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/run_request.h"

namespace holdfast::cli {

inline constexpr char kRunKeyVariable[] = "HOLDFAST_RUN_KEY";

// The scheduler's port in a step, when none is given: kStepPortFirst + (16 * job + step) modulo
// kStepPorts. Below what kernels give to outgoing connections (32768 and up).
inline constexpr uint32_t kStepPortFirst = 20'000;
inline constexpr uint32_t kStepPorts = 10'000;
uint16_t PortOfStep(uint64_t job, uint64_t step);

struct GuestPlan {
  bool slurm = false;
  uint64_t slurm_job = 0;
  uint32_t nodes = 1;    // the job takes so many
  uint32_t tasks = 1;    // so many take part, one a node; what is more than `nodes` is spare
  uint32_t node_id = 0;  // of this task; 0 also runs the scheduler
  std::string node;      // this node's name for the scheduler
  std::string host;      // of the scheduler; empty: its task finds it out and tells it in the file
  uint16_t port = 0;     // of the scheduler
  std::string run_file;  // where endpoint and key are told, mode 0600; empty: the key is given
  std::string key;       // given by kRunKeyVariable
  std::string
      launch_address;  // of the machine where srun runs, as this node reaches it; may be empty

  bool head() const { return node_id == 0; }
};

// nullopt: one machine. `environment`: all of this process; `working_directory`: its own.
// INVALID_ARGUMENT naming variable or flag, value and remedy.
absl::StatusOr<std::optional<GuestPlan>> PlanGuest(
    const std::map<std::string, std::string>& environment, const std::string& working_directory,
    const RunRequest& request);

// The first name of a Slurm host list: "gpu[017-019,22],login1" gives "gpu017". Empty when it is
// not one.
std::string FirstHost(const std::string& list);

// "host:port", "[v6]:port" or "host" (then `port` is left as it is).
absl::Status SplitEndpoint(const std::string& flag, const std::string& text, std::string* host,
                           uint16_t* port);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_PLAN_H_
