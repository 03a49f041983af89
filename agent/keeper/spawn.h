// SPDX-License-Identifier: Apache-2.0
// Starts one rank: its own session, a pipe for its output, PDEATHSIG, clean signals, the user's
// ids, then exec. What goes wrong between fork and exec comes back as {stage, errno} on a
// close-on-exec pipe, whose end of file means that exec worked.
#ifndef HOLDFAST_AGENT_KEEPER_SPAWN_H_
#define HOLDFAST_AGENT_KEEPER_SPAWN_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rank/start_spec.h"
#include "base/unique_fd.h"

namespace holdfast::keeper {

// What the keeper changed for itself and a rank gets back.
struct InheritedLimits {
  rlimit open_files = {};
  std::string oom_score_adj;  // empty: leave
};

struct ChildReport {
  int32_t stage = 0;  // rank::StartStage
  int32_t error = 0;  // errno
};

struct Spawned {
  pid_t pid = 0;
  UniqueFd output;  // non-blocking read end of stdout and stderr
  UniqueFd report;  // non-blocking read end: one ChildReport, or end of file after exec
};

// The common entries, then the rank's (which win), then `extra` (which win over all); PATH when
// nobody set one.
std::vector<std::string> MergeEnv(const std::vector<std::string>& common,
                                  const std::vector<std::string>& own,
                                  const std::vector<std::string>& extra);

// Returns 0, or an errno with nothing started. Never waits for the child.
int SpawnRank(const rank::StartSpec& spec, const rank::RankSpec& rank,
              const std::vector<std::string>& env, const InheritedLimits& limits, Spawned* out);

// A process with spec.standby as its command, in all else as a rank: `output` from the start,
// kStandbyGoFd and kStandbyStartFd at its other ends. It becomes the rank by WakeStandby.
struct StandbyEnds {
  UniqueFd go, start;
};
int SpawnStandby(const rank::StartSpec& spec, const std::vector<std::string>& env,
                 const InheritedLimits& limits, Spawned* out, StandbyEnds* ends);
// Returns 0 or an errno: then it has not been told and is of no use.
int WakeStandby(const StandbyEnds& ends, const std::string& start);

// Starts spec.service as the user of the ranks, with `socket` as rank::kServiceFd and the keeper's
// own stderr, and waits, kServiceExecMs at most, until exec has worked. Returns the process or a
// negative errno with nothing left of it.
inline constexpr int kServiceExecMs = 2'000;
pid_t SpawnService(const rank::StartSpec& spec, int socket, const InheritedLimits& limits);

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_SPAWN_H_
