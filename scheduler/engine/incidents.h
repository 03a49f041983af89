// SPDX-License-Identifier: Apache-2.0
// Incidents: opened with a fault, named again while more is learned, closed by the first step of
// all ranks of the next attempt. The five times count from the fault, as far as its moment is
// known.
#ifndef HOLDFAST_SCHEDULER_ENGINE_INCIDENTS_H_
#define HOLDFAST_SCHEDULER_ENGINE_INCIDENTS_H_

#include <string>

#include "scheduler/core/first_cause.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

// The incident of the recovery that runs; null when there is none.
v1::Incident* OpenIncident(records::JobRecord* job);

// Begins the incident of a fault, or adds to the one that is still open (a fault during a recovery
// is an incident of its own).
void BeginIncident(Cycle& c, records::JobRecord* job, const Cause& cause, uint64_t attempt_hit);
// More is known now: names it anew when that changes anything.
void RenameIncident(Cycle& c, records::JobRecord* job, const Cause& cause);
void CloseIncident(Cycle& c, records::JobRecord* job, const std::string& how);

// Something that does not interrupt the job (a failed save): opened and closed at once, rung 0.
void AddSideIncident(Cycle& c, uint64_t job, v1::FaultClass fault_class, const std::string& node,
                     const std::string& what);

// The same, for what may come again and again: counted on the job's newest incident when that is
// of the same class, node and attempt, else one of its own.
void CountSideIncident(Cycle& c, uint64_t job, v1::FaultClass fault_class, const std::string& node,
                       const std::string& what);

// restored_ms and first_step_ms of the running attempt; closes when all ranks have finished a step.
void FollowIncident(Cycle& c, uint64_t job);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_INCIDENTS_H_
