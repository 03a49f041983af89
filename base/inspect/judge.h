// SPDX-License-Identifier: Apache-2.0
// What is certain about a process that was looked at twice, in one sentence: that it is stopped,
// has ended, or has been blocked in the same place all the time, down the chain of children it
// waits for. Pure. What is not certain is not said: then the answer is empty. No errors.
// Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_JUDGE_H_
#define HOLDFAST_BASE_INSPECT_JUDGE_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/inspect/sample.h"
#include "base/inspect/wait.h"

namespace holdfast::inspect {

inline constexpr size_t kChainMax = 8;  // children of children that a sentence follows

// A process at the second look.
struct Looked {
  ProcessStat stat;
  std::optional<Rates> rates;  // none: new since the first look
  std::optional<Wait> wait;    // none: another user's
  pid_t tracer = 0;            // a debugger
  std::vector<pid_t> writers;  // of the pipe it reads from, among the processes looked at
};
using LookedAt = std::map<pid_t, Looked>;

// Where a chain of waits ends: what would have to happen for the process to go on.
enum class WaitsFor {
  kUnknown,  // nothing is certain, or a lock, or one of several, or something without a name
  kPeer,     // a socket: another process, perhaps on another machine
  kTime,     // it sleeps
  kData,     // a file, or a pipe with a name
  kStorage,  // it is uninterruptible: a disk or a network file system
  kStopped,  // a signal or a debugger stopped it
  kEnded,
};

struct Judgement {
  std::string text;  // empty: nothing is certain
  WaitsFor end = WaitsFor::kUnknown;
  pid_t pid = 0;  // whose wait is the end of the chain
};
Judgement JudgeChain(pid_t pid, const LookedAt& all);

// E.g. "waits for its child 123 (python), which waits in read of /mnt/x (descriptor 3)". The
// sentence's subject is `pid`, which is among `all`.
std::string Judge(pid_t pid, const LookedAt& all);  // JudgeChain's text

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_JUDGE_H_
