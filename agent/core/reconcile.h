// SPDX-License-Identifier: Apache-2.0
// What to do so that what runs here becomes what the scheduler wants: a pure, level-triggered
// function. It is called again after everything that changes; it never remembers, so a lost or
// repeated order does no harm. A job that nobody mentions is left alone: a scheduler that has lost
// its mind or its disk stops nobody.
#ifndef HOLDFAST_AGENT_CORE_RECONCILE_H_
#define HOLDFAST_AGENT_CORE_RECONCILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/core/stop_ladder.h"

namespace holdfast::agent {

// The part of a DesiredJob that decides.
struct WantedJob {
  enum Phase { kRun, kStop, kForget };
  uint64_t job = 0;
  uint64_t attempt = 0;
  Phase phase = kStop;
  StopKind stop = StopKind::kKill;
  int64_t grace_ns = 0;
  uint32_t local_ranks = 0;       // of the placement on this node; RUN with none is nothing to do
  bool waits_for_master = false;  // another node has not said yet where the ranks meet
};

struct ObservedJob {
  uint64_t job = 0;
  bool known = false;            // this node has a directory of it
  uint64_t fence_attempt = 0;    // newest attempt written to the recorders
  uint64_t started_attempt = 0;  // newest attempt whose ranks were ordered to start here
  uint32_t ranks_alive = 0;      // of any attempt
  bool starting = false;         // an order to start is on its way to the keeper
  bool left_behind = false;      // processes of the job beside its ranks live
  bool keeper_attached = false;
  bool keeper_busy = false;     // being started, being attached, or its end being cleaned up
  int64_t keeper_retry_ns = 0;  // not before this time (back-off after failed starts)
  uint64_t stop_reported = 0;   // attempt for which STOP_COMPLETE was reported
};

struct Action {
  enum Kind {
    kRaiseFence,  // write `attempt` into every recorder
    kStartKeeper,
    kStartRanks,  // of `attempt`
    kStopRanks,   // by `stop`, `grace_ns`
    kKillLeftBehind,
    kReportStopped,  // STOP_COMPLETE for `attempt`
    kForget,         // end the keeper, remove the directory
  };
  Kind kind;
  uint64_t job = 0;
  uint64_t attempt = 0;
  StopKind stop = StopKind::kNone;
  int64_t grace_ns = 0;
  std::string reason;
};

// For one job; `observed` of a job this node does not know has known = false. Order matters: carry
// them out in order.
std::vector<Action> Reconcile(const WantedJob& wanted, const ObservedJob& observed, int64_t now_ns);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_RECONCILE_H_
