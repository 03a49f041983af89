// SPDX-License-Identifier: Apache-2.0
// What processes did between two looks at them. Pure in time: a look is stamped by the caller, the
// rates come from two looks and the nanoseconds between them.
//
// Units: rates are a second's; `cpus` and `queued` are CPUs (1.0: one CPU for the whole time).
// Errors: a process that is gone is left out of a look; what is another user's is missing in it.
// Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_SAMPLE_H_
#define HOLDFAST_BASE_INSPECT_SAMPLE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/inspect/proc_fs.h"

namespace holdfast::inspect {

struct ProcessSample {
  ProcessStat stat;
  std::optional<IoCounters> io;            // none: another user's
  std::map<pid_t, SchedCounters> threads;  // by thread id
  std::string syscall;                     // the main thread's line; "": another user's
};
using Sample = std::map<pid_t, ProcessSample>;

Sample TakeSample(const ProcFs& proc, const std::vector<pid_t>& pids);

struct Rates {
  double cpus = 0;
  double queued = 0;  // threads that were ready to run, but no CPU was free, on average
  std::optional<double> read, written, storage_read, storage_written;  // bytes a second
  // The main thread was in one and the same system call at both looks and on no CPU in between: it
  // has been blocked there all the time.
  bool blocked = false;
};

// nullopt: no time has passed, or `after` is another process with the same pid.
std::optional<Rates> RatesOf(const ProcessSample& before, const ProcessSample& after,
                             int64_t elapsed_ns, int64_t ticks_per_second);

// The sum of what is known; `blocked` is false.
Rates Sum(const std::vector<Rates>& parts);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_SAMPLE_H_
