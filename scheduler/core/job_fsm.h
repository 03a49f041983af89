// SPDX-License-Identifier: Apache-2.0
// The life of a job as a table: (state, event) -> state. job_fsm.md explains each line; a test
// checks that table and page agree. Pure: no clock, no I/O. Whatever changes a job's state goes
// through NextState, so that what is not in the table cannot happen.
#ifndef HOLDFAST_SCHEDULER_CORE_JOB_FSM_H_
#define HOLDFAST_SCHEDULER_CORE_JOB_FSM_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::sched {

enum class JobEvent {
  kPlaced,        // devices are assigned, the attempt is raised
  kNoPlace,       // a recovering job finds no place now and waits in the queue
  kAllRunning,    // every rank of the attempt runs
  kFault,         // a rank or a node of the attempt failed: the attempt is over
  kAllEndedWell,  // every rank exited 0 and a checkpoint of the last step is still to be committed
  kEndDone,       // every rank exited 0 and nothing is left to commit
  kStopOrdered,   // cancel, drain, preemption or time limit
  kRequeued,      // stopped for a drain or a preemption; waits for another place
  kEndCancelled,
  kEndFailed,
  kEndPreempted,
};

struct Transition {
  v1::JobState from;
  JobEvent event;
  v1::JobState to;
};

const std::vector<Transition>& TransitionTable();
std::string EventName(JobEvent event);      // "PLACED"
std::string StateName(v1::JobState state);  // "QUEUED"
bool IsEnded(v1::JobState state);

// FAILED_PRECONDITION, naming both, when the table has no such line.
absl::StatusOr<v1::JobState> NextState(v1::JobState from, JobEvent event);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_JOB_FSM_H_
