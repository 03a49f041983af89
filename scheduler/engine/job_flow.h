// SPDX-License-Identifier: Apache-2.0
// What a job does next, given the facts. SettleJob may be called at any time and any number of
// times: it is level-triggered, so a decision whose write failed is simply made again.
#ifndef HOLDFAST_SCHEDULER_ENGINE_JOB_FLOW_H_
#define HOLDFAST_SCHEDULER_ENGINE_JOB_FLOW_H_

#include <string>

#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

inline constexpr int64_t kLastSaveWaitMs =
    30'000;  // a graceful stop waits this long for the last save to be whole
inline constexpr int64_t kCommitWaitMs =
    120'000;  // all ranks ended well, but the last save does not come

void SettleJob(Cycle& c, uint64_t job);

// A stop that was asked for: cancel, drain, time limit. The job must not have ended. `graceful`: by
// should_stop.
void OrderStop(Cycle& c, uint64_t job, records::StopIntent intent, bool graceful,
               const std::string& detail);

// Ends the job now; nothing of it may run on any reachable node.
void EndJob(Cycle& c, uint64_t job, JobEvent event, const std::string& reason);

// Holds: orders stops where nothing may run, and notes what has stopped.
void FollowHolds(Cycle& c, uint64_t job);

struct StopProgress {
  bool reachable_stopped =
      true;  // every node that can be reached has stopped, and has said what its memory holds
  std::string waiting_for;
};
StopProgress WhatStillRuns(Cycle& c, const records::JobRecord& job);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_JOB_FLOW_H_
