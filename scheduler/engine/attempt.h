// SPDX-License-Identifier: Apache-2.0
// The start of an attempt: number, placement, start point and line are stored in one write before
// any node hears of it.
#ifndef HOLDFAST_SCHEDULER_ENGINE_ATTEMPT_H_
#define HOLDFAST_SCHEDULER_ENGINE_ATTEMPT_H_

#include "scheduler/core/placement.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

PlacementRequest RequestOf(const records::JobRecord& job);

// Where the next attempt of the job would start from, placed like this. An order of an operator
// that cannot be followed is told in an event.
v1::StartPoint ChooseStart(Cycle& c, records::JobRecord* job, const v1::Placement& placement);

// The job is QUEUED or RECOVERING, and nothing of an older attempt runs where we can reach it.
void StartAttempt(Cycle& c, uint64_t job, const v1::Placement& placement);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_ATTEMPT_H_
