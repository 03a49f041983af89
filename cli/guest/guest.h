// SPDX-License-Identifier: Apache-2.0
// `holdfast run` over several nodes that somebody else manages (docs/slurm.md): one process a node,
// the first also runs the scheduler, shows the output of all ranks and ends first; the others run
// their agent until the job has ended.
#ifndef HOLDFAST_CLI_GUEST_GUEST_H_
#define HOLDFAST_CLI_GUEST_GUEST_H_

#include <map>
#include <string>

#include "cli/guest/plan.h"
#include "cli/run_request.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

// What happened to the run and not to the job: the node with the scheduler is lost, or too many
// nodes are. Started again, the same command goes on from its checkpoints.
inline constexpr int kExitRequeue = 75;  // EX_TEMPFAIL of sysexits.h

// All of this process.
std::map<std::string, std::string> ProcessEnvironment();

// `spec`: of one node's ranks; the plan's number of nodes is put into it. Returns the exit code.
int RunGuest(const GuestPlan& plan, const RunRequest& request, v1::JobSpec spec);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_GUEST_H_
