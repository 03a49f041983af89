// SPDX-License-Identifier: Apache-2.0
// Causes found while the ranks live: each is written into the ledger when it is found, with what
// acting would cost and how sure it is, and closed with what came of it. Where its mode is to act,
// the job is recovered once the time lost exceeds that cost.
#ifndef HOLDFAST_SCHEDULER_ENGINE_LIVE_H_
#define HOLDFAST_SCHEDULER_ENGINE_LIVE_H_

#include <string>
#include <vector>

#include "scheduler/core/first_cause.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

// STOPPED ranks are no failures while this says so.
bool ObservesStops(Cycle& c, const records::JobRecord& job);

// Looks at a running job. Returns what is to be recovered from now; empty: nothing.
std::vector<RankFailure> WatchLive(Cycle& c, uint64_t job);

// Stopped ranks are recovered at once where that is the mode: that is written down, too.
void NoteActedStops(Cycle& c, uint64_t job, const std::vector<RankFailure>& failures);

// The attempt is over: whatever was found in it has its outcome. `how`: by what it ended.
void CloseLedger(Cycle& c, uint64_t job, const std::string& how);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_LIVE_H_
