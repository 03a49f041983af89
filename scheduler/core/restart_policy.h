// SPDX-License-Identifier: Apache-2.0
// May a job be started again after a fault, and when? Budgets are for faults and come back with
// progress; what the user's own program does before its first step gets one retry; the same crash
// at the same step twice without progress is the program's. Of a program that shows no steps only
// the time is known: its first minute counts as before the first step, and crashes after the same
// time, three of them, as the same place. A job with program_restarts has its budget and nothing
// else. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_RESTART_POLICY_H_
#define HOLDFAST_SCHEDULER_CORE_RESTART_POLICY_H_

#include <cstdint>
#include <string>

#include "holdfast/v1/common.pb.h"
#include "scheduler/core/first_cause.h"
#include "scheduler/store/records.pb.h"

namespace holdfast::sched {

inline constexpr uint32_t kRestartsMaxDefault = 100;
inline constexpr uint32_t kFreeRestarts = 2;  // without back-off, since the last progress
inline constexpr int64_t kBackoffFirstMs = 1'000;
inline constexpr int64_t kBackoffMaxMs = 30'000;
inline constexpr uint32_t kUserProgramRetries = 1;
inline constexpr uint32_t kSameCrashMax = 2;
inline constexpr uint32_t kSameCrashUnseenMax = 3;  // where steps cannot be seen
inline constexpr int64_t kUnseenStartMs = 60 * 1000;
inline constexpr int64_t kSameTimeMs = 5'000;  // or a fifth of the time, whichever is more
inline constexpr int64_t kActivityIsProgressMs =
    10 * 60 * 1000;  // where neither snapshot nor checkpoint can be seen

// What the job has achieved on its line by the time of the fault.
struct Progress {
  uint64_t newest_point_step = 0;  // newest complete snapshot or committed checkpoint; 0: none
  bool points_visible = false;     // the job has had a snapshot or checkpoint in some attempt
  int64_t active_ms = 0;           // how long this attempt ran
};

struct RestartDecision {
  bool restart = false;
  int64_t backoff_ms = 0;       // counted from the fault
  std::string reason;           // FAILED reason when not restarted, else why it may
  bool blames_program = false;  // the fault is USER_PROGRAM, whatever it looked like alone
};

// Restores budget, back-off and crash counters when `progress` is newer than anything before. True
// when it was.
bool NoteProgress(const Progress& progress, records::RestartBook* book);

// Counts this fault and decides. Call NoteProgress first. `active_ms`: how long the attempt ran. An
// operator's restart is not a fault: do not call this for one.
RestartDecision DecideRestart(const v1::JobSpec& spec, const Cause& cause, int64_t active_ms,
                              records::RestartBook* book);

// 0, 0, 1 s, 2 s, 4 s, ... 30 s for the 1st, 2nd, 3rd, ... fault without progress.
int64_t BackoffMs(uint32_t faults_without_progress);

uint32_t RestartsMax(const v1::JobSpec& spec);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_RESTART_POLICY_H_
