// SPDX-License-Identifier: Apache-2.0
// Which processes of this machine are the ranks of a job. The scheduler knows no pids; the keeper
// of (job, node) is the ranks' parent and is told by its arguments, a rank by its slot's name in
// the environment that the kernel shows (HOLDFAST_KEEPER_RANK). Descendants inherit that name; a
// rank is the child of the keeper that leads its session, and no waiting standby.
//
// Errors: none; what cannot be told is a sentence in `why`. Threads: any.
#ifndef HOLDFAST_CLI_LOOK_RANKS_H_
#define HOLDFAST_CLI_LOOK_RANKS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/inspect/proc_fs.h"

namespace holdfast::cli {

struct RankProcesses {
  inspect::ProcessStat rank;
  std::vector<inspect::ProcessStat> below;  // each after its parent; then what lost its parents
};

struct NodeProcesses {
  std::map<uint32_t, RankProcesses> ranks;  // by rank
  std::string why;  // why ranks may be missing, for people; "" when nothing is in doubt
};

// `address`: of the node's agent, as the scheduler knows it; a unix: one names the node's state
// directory. With another the keepers of `job` are told apart by the agents' arguments.
NodeProcesses FindRanks(const inspect::ProcFs& proc, const std::string& job,
                        const std::string& node, const std::string& address);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LOOK_RANKS_H_
