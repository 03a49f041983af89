// SPDX-License-Identifier: Apache-2.0
// The system calls in which a process can be blocked for long, and what their arguments mean. The
// numbers are those of the machine this is built for; a 32-bit process's are others, which shows as
// a wrong name or none.
// Threads: any. No errors: an unknown number is nullptr.
#ifndef HOLDFAST_BASE_INSPECT_SYSCALLS_H_
#define HOLDFAST_BASE_INSPECT_SYSCALLS_H_

#include <cstdint>

namespace holdfast::inspect {

enum class CallShape {
  kFd,       // descriptor in argument 0
  kPath,     // path in argument 0
  kAtPath,   // directory descriptor in argument 0, path in argument 1
  kPoll,     // pollfd[] in argument 0, its length in argument 1
  kFutex,    //
  kWaitPid,  // wait4: pid in argument 0
  kWaitId,   // waitid: kind in argument 0, id in argument 1
  kTime,     // sleeps, waits for a signal
  kOther,
};

struct CallInfo {
  int64_t number;
  const char* name;
  CallShape shape;
};
const CallInfo* FindCall(int64_t number);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_SYSCALLS_H_
