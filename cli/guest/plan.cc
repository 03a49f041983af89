// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/plan.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/run_key.h"

namespace holdfast::cli {
namespace {

constexpr uint16_t kPodPort = 29'500;  // torchrun's own, for an endpoint without one

using Environment = std::map<std::string, std::string>;

std::string Get(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

absl::Status Bad(const std::string& what, const std::string& value, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": \"", value, "\" ", why));
}

absl::Status Number(const Environment& environment, const std::string& name, uint64_t* out) {
  const std::string text = Get(environment, name);
  if (absl::SimpleAtoi(text, out)) return absl::OkStatus();
  return Bad(name, text, "is not a number; `holdfast run` reads it as Slurm sets it in a step");
}

bool InSlurmStep(const Environment& environment) {
  // A batch script is no step; one that srun was not asked for anything has these too.
  return !Get(environment, "SLURM_JOB_ID").empty() && !Get(environment, "SLURM_STEP_ID").empty() &&
         !Get(environment, "SLURM_STEP_NUM_NODES").empty() &&
         !Get(environment, "SLURM_NODEID").empty();
}

// What of the nodes that take part the job uses: --nnodes N, or MIN:MAX of which MIN is used.
absl::Status SetNodes(const RunRequest& request, uint32_t tasks, GuestPlan* plan) {
  plan->tasks = tasks;
  plan->nodes = request.nodes_min == 0 ? tasks : request.nodes_min;
  if (plan->tasks > static_cast<uint32_t>(kNodesPerJobMax)) {
    return Bad("--nnodes", absl::StrCat(plan->tasks),
               absl::StrCat("is more than ", kNodesPerJobMax, " nodes"));
  }
  if (plan->nodes <= tasks) return absl::OkStatus();
  return Bad("--nnodes", absl::StrCat(request.nodes_min),
             absl::StrCat("is more than the ", tasks, " node(s) of this step; give srun --nodes ",
                          request.nodes_min, " or more"));
}

absl::Status SetEndpoint(const RunRequest& request, GuestPlan* plan) {
  if (!request.rdzv_endpoint.empty())
    return SplitEndpoint("--rdzv-endpoint", request.rdzv_endpoint, &plan->host, &plan->port);
  if (request.master_addr.empty()) return absl::OkStatus();
  const std::string port = request.master_port.empty() ? "" : ":" + request.master_port;
  return SplitEndpoint("--master-addr", absl::StrCat(request.master_addr, port), &plan->host,
                       &plan->port);
}

absl::Status SetKey(const Environment& environment, GuestPlan* plan) {
  plan->key = Get(environment, kRunKeyVariable);
  if (plan->key.empty()) return absl::OkStatus();
  return Annotate(proto::CheckRunKeyForm(plan->key), kRunKeyVariable);
}

absl::StatusOr<std::optional<GuestPlan>> PlanSlurm(const Environment& environment,
                                                   const std::string& working_directory,
                                                   const RunRequest& request) {
  uint64_t job = 0, step = 0, nodes = 0, tasks = 0, node_id = 0;
  HF_RETURN_IF_ERROR(Number(environment, "SLURM_JOB_ID", &job));
  HF_RETURN_IF_ERROR(Number(environment, "SLURM_STEP_ID", &step));
  HF_RETURN_IF_ERROR(Number(environment, "SLURM_STEP_NUM_NODES", &nodes));
  HF_RETURN_IF_ERROR(Number(environment, "SLURM_STEP_NUM_TASKS", &tasks));
  HF_RETURN_IF_ERROR(Number(environment, "SLURM_NODEID", &node_id));
  if (nodes <= 1) return std::nullopt;
  if (tasks != nodes) {
    return Bad("SLURM_STEP_NUM_TASKS", absl::StrCat(tasks),
               absl::StrCat("is not the ", nodes,
                            " of SLURM_STEP_NUM_NODES: each node needs one task; give srun "
                            "--ntasks-per-node 1, and the ranks by --nproc-per-node"));
  }
  GuestPlan plan;
  plan.slurm = true;
  plan.slurm_job = job;
  plan.node_id = static_cast<uint32_t>(node_id);
  HF_RETURN_IF_ERROR(SetNodes(request, static_cast<uint32_t>(nodes), &plan));
  plan.node = Get(environment, "SLURMD_NODENAME");
  if (!IsValidName(plan.node)) plan.node = absl::StrCat("node", node_id);
  plan.port = PortOfStep(job, step);
  plan.launch_address = Get(environment, "SLURM_LAUNCH_NODE_IPADDR");
  HF_RETURN_IF_ERROR(SetEndpoint(request, &plan));
  HF_RETURN_IF_ERROR(SetKey(environment, &plan));
  if (!plan.key.empty()) {
    // Without the file the others must know the host: its name, unless it is given.
    if (plan.host.empty()) plan.host = FirstHost(Get(environment, "SLURM_STEP_NODELIST"));
    return plan;
  }
  std::string directory = request.shared_dir;
  if (directory.empty()) directory = Get(environment, "SLURM_SUBMIT_DIR");
  if (directory.empty()) directory = working_directory;
  const std::string restart = Get(environment, "SLURM_RESTART_COUNT");
  plan.run_file = absl::StrCat(directory, "/.holdfast-run-", job, ".", step, ".",
                               restart.empty() ? "0" : restart);
  return plan;
}

absl::StatusOr<std::optional<GuestPlan>> PlanPods(const Environment& environment,
                                                  const RunRequest& request) {
  const std::string given = absl::StrCat(request.nodes_min);
  GuestPlan plan;
  plan.port = kPodPort;
  HF_RETURN_IF_ERROR(SetNodes(request, request.nodes_max, &plan));
  HF_RETURN_IF_ERROR(SetEndpoint(request, &plan));
  if (plan.host.empty() || !request.node_rank.has_value()) {
    return Bad(
        "--nnodes", given,
        "is more than this machine: outside a Slurm step it also needs --node-rank (0 to one "
        "less than the nodes) and --rdzv-endpoint HOST:PORT of node rank 0, the same on all; "
        "on nodes with agents (deploy/README.md) use `holdfast submit --nodes`");
  }
  plan.node_id = *request.node_rank;
  if (plan.node_id >= plan.tasks) {
    return Bad("--node-rank", absl::StrCat(plan.node_id),
               absl::StrCat("is not one of 0 to ", plan.tasks - 1));
  }
  // Of equal length, so that their order by name is that of their ranks.
  plan.node = absl::StrFormat("node%0*d", absl::StrCat(plan.tasks - 1).size(), plan.node_id);
  HF_RETURN_IF_ERROR(SetKey(environment, &plan));
  if (plan.key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kRunKeyVariable,
                     " is not set: the nodes of this run know each other by it; set it to the "
                     "same secret on all of them, as from `openssl rand -hex 32`"));
  }
  return plan;
}

}  // namespace

uint16_t PortOfStep(uint64_t job, uint64_t step) {
  return static_cast<uint16_t>(kStepPortFirst + (16 * (job % kStepPorts) + step) % kStepPorts);
}

std::string FirstHost(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket + 1);
  if (end == std::string::npos) return "";
  const size_t close = list.find(']', bracket);
  if (close == std::string::npos) return "";
  const size_t next = list.find(',', close);
  return absl::StrCat(list.substr(0, bracket), list.substr(bracket + 1, end - bracket - 1),
                      list.substr(close + 1, next == std::string::npos ? next : next - close - 1));
}

absl::Status SplitEndpoint(const std::string& flag, const std::string& text, std::string* host,
                           uint16_t* port) {
  const size_t colon = text.rfind(':');
  const bool bare = colon == std::string::npos || (!text.empty() && text.back() == ']');
  uint32_t number = 0;
  if (!bare &&
      (!absl::SimpleAtoi(text.substr(colon + 1), &number) || number == 0 || number > 65'535))
    return Bad(flag, text, "is not HOST:PORT with a port from 1 to 65535");
  const std::string name = bare ? text : text.substr(0, colon);
  if (name.empty() || (name.find(':') != std::string::npos && name[0] != '['))
    return Bad(flag, text, "is not HOST:PORT; an IPv6 address is written [::1]:PORT");
  *host = name;
  if (!bare) *port = static_cast<uint16_t>(number);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GuestPlan>> PlanGuest(const Environment& environment,
                                                   const std::string& working_directory,
                                                   const RunRequest& request) {
  // Said by hand: each task is a run of its own, as torchrun takes it too.
  if (request.nodes_max == 1) return std::nullopt;
  if (InSlurmStep(environment)) return PlanSlurm(environment, working_directory, request);
  if (request.nodes_max == 0) return std::nullopt;
  return PlanPods(environment, request);
}

}  // namespace holdfast::cli
