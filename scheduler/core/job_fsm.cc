// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/job_fsm.h"

#include "absl/strings/str_cat.h"

namespace holdfast::sched {
namespace {

constexpr std::string_view kStatePrefix = "JOB_STATE_";

}  // namespace

const std::vector<Transition>& TransitionTable() {
  using E = JobEvent;
  static const auto* const kTable = new std::vector<Transition>{
      {v1::JOB_STATE_QUEUED, E::kPlaced, v1::JOB_STATE_STARTING},
      {v1::JOB_STATE_QUEUED, E::kEndCancelled, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_QUEUED, E::kEndFailed, v1::JOB_STATE_FAILED},

      {v1::JOB_STATE_STARTING, E::kAllRunning, v1::JOB_STATE_RUNNING},
      {v1::JOB_STATE_STARTING, E::kFault, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_STARTING, E::kAllEndedWell, v1::JOB_STATE_COMMITTING},
      {v1::JOB_STATE_STARTING, E::kEndDone, v1::JOB_STATE_DONE},
      {v1::JOB_STATE_STARTING, E::kStopOrdered, v1::JOB_STATE_STOPPING},

      {v1::JOB_STATE_RUNNING, E::kFault, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_RUNNING, E::kAllEndedWell, v1::JOB_STATE_COMMITTING},
      {v1::JOB_STATE_RUNNING, E::kEndDone, v1::JOB_STATE_DONE},
      {v1::JOB_STATE_RUNNING, E::kStopOrdered, v1::JOB_STATE_STOPPING},

      {v1::JOB_STATE_RECOVERING, E::kPlaced, v1::JOB_STATE_STARTING},
      {v1::JOB_STATE_RECOVERING, E::kNoPlace, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_RECOVERING, E::kEndFailed, v1::JOB_STATE_FAILED},
      {v1::JOB_STATE_RECOVERING, E::kStopOrdered, v1::JOB_STATE_STOPPING},

      {v1::JOB_STATE_COMMITTING, E::kEndDone, v1::JOB_STATE_DONE},
      {v1::JOB_STATE_COMMITTING, E::kFault, v1::JOB_STATE_RECOVERING},
      {v1::JOB_STATE_COMMITTING, E::kStopOrdered, v1::JOB_STATE_STOPPING},

      {v1::JOB_STATE_STOPPING, E::kStopOrdered, v1::JOB_STATE_STOPPING},
      {v1::JOB_STATE_STOPPING, E::kRequeued, v1::JOB_STATE_QUEUED},
      {v1::JOB_STATE_STOPPING, E::kEndCancelled, v1::JOB_STATE_CANCELLED},
      {v1::JOB_STATE_STOPPING, E::kEndFailed, v1::JOB_STATE_FAILED},
      {v1::JOB_STATE_STOPPING, E::kEndPreempted, v1::JOB_STATE_PREEMPTED},
  };
  return *kTable;
}

std::string EventName(JobEvent event) {
  switch (event) {
    case JobEvent::kPlaced:
      return "PLACED";
    case JobEvent::kNoPlace:
      return "NO_PLACE";
    case JobEvent::kAllRunning:
      return "ALL_RUNNING";
    case JobEvent::kFault:
      return "FAULT";
    case JobEvent::kAllEndedWell:
      return "ALL_ENDED_WELL";
    case JobEvent::kEndDone:
      return "END_DONE";
    case JobEvent::kStopOrdered:
      return "STOP_ORDERED";
    case JobEvent::kRequeued:
      return "REQUEUED";
    case JobEvent::kEndCancelled:
      return "END_CANCELLED";
    case JobEvent::kEndFailed:
      return "END_FAILED";
    case JobEvent::kEndPreempted:
      return "END_PREEMPTED";
  }
  return "?";
}

std::string StateName(v1::JobState state) {
  std::string name = v1::JobState_Name(state);
  if (name.rfind(kStatePrefix, 0) == 0) name.erase(0, kStatePrefix.size());
  return name.empty() ? absl::StrCat("state ", static_cast<int>(state)) : name;
}

bool IsEnded(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED || state == v1::JOB_STATE_PREEMPTED;
}

absl::StatusOr<v1::JobState> NextState(v1::JobState from, JobEvent event) {
  for (const Transition& line : TransitionTable()) {
    if (line.from == from && line.event == event) return line.to;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("a job that is ", StateName(from), " cannot take the event ", EventName(event)));
}

}  // namespace holdfast::sched
