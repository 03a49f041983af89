// SPDX-License-Identifier: Apache-2.0
// From a fault to the next attempt: fence the old one at once, wait until it is gone, decide,
// place, start.
#ifndef HOLDFAST_SCHEDULER_ENGINE_RECOVERY_H_
#define HOLDFAST_SCHEDULER_ENGINE_RECOVERY_H_

#include <string>
#include <vector>

#include "scheduler/core/first_cause.h"
#include "scheduler/core/placement.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

// A fault of the attempt that runs: raises the attempt, orders every node to kill the old one.
void BeginRecovery(Cycle& c, uint64_t job, const std::vector<RankFailure>& failures);
// The same on an operator's order; no incident, no budget. `from_step` 0: the newest point.
void BeginManualRestart(Cycle& c, uint64_t job, uint64_t from_step);

// RECOVERING: goes on as far as the facts allow.
void SettleRecovery(Cycle& c, uint64_t job);

// Whether what may still run on lost nodes allows a start elsewhere; else what is waited for.
bool FencesAllow(Cycle& c, const records::JobRecord& job, std::string* waiting_for);

// Places QUEUED jobs in order, as far as they fit.
void RunQueue(Cycle& c);

// Nodes as the placement of `job` sees them: a device is free when no other job holds it and this
// job's own processes are gone.
std::vector<PlacementNode> NodesForPlacement(Cycle& c, uint64_t job);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_RECOVERY_H_
