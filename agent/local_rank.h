// SPDX-License-Identifier: Apache-2.0
// One rank on this node as the agent knows it: the state machine, the shared memory, what is known
// of its process.
#ifndef HOLDFAST_AGENT_LOCAL_RANK_H_
#define HOLDFAST_AGENT_LOCAL_RANK_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/rank_fsm.h"
#include "agent/mapping.h"
#include "agent/process.h"
#include "base/unique_fd.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

// One thread (the loop's). The arena outlives attempts; everything else is of `attempt`.
struct LocalRank {
  uint32_t rank = 0;
  uint64_t attempt = 0;
  RankFsm fsm;
  pid_t pid = 0;
  UniqueFd pidfd;  // of a process that lived when we learned of it
  bool hello = false;
  bool first_step_told = false;
  bool oom_killed = false;
  std::string start_error;
  bool start_is_program = false;
  std::unique_ptr<Recorder> recorder;
  std::shared_ptr<Arena> arena;  // also held by saves that are under way
  CgroupPaths cgroups;
  std::optional<uint64_t> oom_kills;  // of its memory cgroup, when last looked at while it lived

  // The rank begins `new_attempt`: everything but the arena is forgotten.
  void Begin(uint64_t new_attempt);
  // Looks at its cgroups; remembers the OOM counter.
  bool LookFrozen();
  // Called at its end: whether the kernel killed it for memory.
  void ClassifyExit();
  v1::RankReport Report(uint64_t job, int64_t now_ns) const;
};

// "exit code 3", "signal 9 (Killed)".
std::string DescribeExit(int32_t exit_code);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_LOCAL_RANK_H_
