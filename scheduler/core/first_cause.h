// SPDX-License-Identifier: Apache-2.0
// Who failed first. Of all that went wrong in an attempt, the first piece of *positive* evidence
// names the cause: something that the failure of a peer cannot bring about (a signal from outside,
// the OOM killer, a stop, a lost node, an early exit 0). An exception or an exit code may be the
// echo of a peer's death; it is the cause only when nothing stronger happened within
// kVictimWindowMs of it. Everybody else who failed within that window is a victim. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_FIRST_CAUSE_H_
#define HOLDFAST_SCHEDULER_CORE_FIRST_CAUSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::sched {

enum class FailureKind {
  kExit,         // ended by itself: exit code or signal in `exit_code`
  kExitedEarly,  // exit 0 while its peers still had work
  kStopped,      // SIGSTOP or a freezer, longer than the grace
  kStartFailed,  // the command could not be started
  kHung,         // it lives, and its mode is to act; `hung_class` and `detail` say what was found
  kVanished,     // its node's agent no longer knows it (keeper died, node restarted)
  kNodeLost,
  kStoreLost,   // it ended by itself after the store it met its peers through; `detail` says how
  kSaveFailed,  // no rank's fault: the checkpoint of the last step could not be committed; `detail`
                // says why
};

struct RankFailure {
  uint32_t rank = 0;
  std::string node;
  FailureKind kind = FailureKind::kExit;
  int32_t exit_code = 0;  // >= 0, or -signal
  bool oom_killed = false;
  int64_t at_mono_ns = 0;         // on the scheduler's clock: receipt minus reported age
  uint64_t step = 0;              // newest finished step of the attempt
  uint64_t start_step = 0;        // of the snapshot or checkpoint that the attempt started from
  bool has_marks = true;          // it told its steps; else nothing is known of them
  bool start_is_program = false;  // kStartFailed: the command is at fault, not the node
  std::string message;            // last words
  std::string stderr_tail;
  std::string detail;  // what the agent said about it
  v1::FaultClass hung_class = v1::FAULT_CLASS_UNSPECIFIED;
  std::string device_reason;  // of the rank's device, when unhealthy
};

struct Cause {
  v1::FaultClass fault_class = v1::FAULT_CLASS_UNSPECIFIED;
  std::vector<uint32_t> ranks;  // named
  std::vector<uint32_t> victims;
  std::string node;
  std::string what;  // a sentence a person acts on
  std::string detail;
  RankFailure root;
  bool own_program = false;  // the program ended by itself (exit code, exception, own crash signal)
};

// `failures` must not be empty; any order. `first_step_ever`: the job has finished a step in some
// attempt (or has been active so long that it must have): before that an own exit is USER_PROGRAM,
// afterwards PROCESS_DIED.
Cause NameFirstCause(std::vector<RankFailure> failures, bool first_step_ever);

// An end that a program brings about by itself: a positive exit code or SIGSEGV, SIGABRT, SIGBUS,
// SIGFPE, SIGILL, SIGTRAP, SIGSYS.
bool IsOwnEnd(const RankFailure& failure);

// "exit code 3", "signal 9 (Killed)".
std::string DescribeExit(int32_t exit_code);

// 128+signal or the code, as shells have it.
int32_t ShellExitCode(int32_t exit_code);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_FIRST_CAUSE_H_
