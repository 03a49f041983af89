// SPDX-License-Identifier: Apache-2.0
// What the main thread of a process waits for in the kernel, in words: the system call, and what
// its arguments mean (the file, pipe or socket behind a descriptor, the path that is being opened,
// the child). Read from outside while the process stays as it is: an answer is of one moment.
//
// Errors: of ProcFs; PERMISSION_DENIED for another user's process. What cannot be resolved is left
// out of the answer, never guessed. Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_WAIT_H_
#define HOLDFAST_BASE_INSPECT_WAIT_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/inspect/proc_fs.h"

namespace holdfast::inspect {

inline constexpr size_t kPolledDescriptorsMax = 16;  // that an answer names

enum class WaitKind {
  kNone,        // it is running, or about to
  kDescriptor,  // in a call on one descriptor
  kPoll,        // on several: fds and targets, as far as they were found
  kPath,        // in a call on a path (an open of a FIFO, of a network file system)
  kFutex,       // a lock, another thread or another process
  kChild,       // for the end of a child
  kTime,        // sleeps, or waits for a signal
  kOther,       // in another call
  kOutside,     // blocked outside any call (a page that is not there)
};

struct Wait {
  WaitKind kind = WaitKind::kNone;
  std::string call;                  // "read"; "system call 999" for one without a name here
  std::vector<int> fds;              // kDescriptor: one
  std::vector<std::string> targets;  // as long as fds: a path, "pipe:[7]", "tcp 1.2.3.4:5 -> ..."
  std::string path;                  // kPath; empty when it could not be read
  pid_t child = 0;                   // kChild: which; 0 any
  std::string kernel;                // the kernel function (wchan); empty when the kernel hides it
};

// Of the process whose /proc/PID/syscall held `line`.
Wait ExplainWait(const ProcFs& proc, pid_t pid, const SyscallLine& line);
// Reads the line, then explains it.
absl::StatusOr<Wait> ReadWait(const ProcFs& proc, pid_t pid);

// "read of /data/x (descriptor 5)", "futex", "wait4 for child 17"; "" for kNone.
std::string WaitText(const Wait& wait);

// A descriptor in words. The link itself when nothing more is known about it.
absl::StatusOr<std::string> DescriptorTarget(const ProcFs& proc, pid_t pid, int fd);

// The writers of all pipes that `pids` have open. Read at the first question, once: hundreds of
// loaders inherit each other's descriptors.
class PipeWriters {
 public:
  PipeWriters(const ProcFs& proc, std::vector<pid_t> pids) : proc_(proc), pids_(std::move(pids)) {}
  // `target` as DescriptorTarget gives it. Each process once, in the order of `pids`.
  const std::vector<pid_t>& Of(const std::string& target);

 private:
  void Read();

  const ProcFs& proc_;
  const std::vector<pid_t> pids_;
  bool read_ = false;
  std::map<std::string, std::vector<pid_t>> writers_;
};

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_WAIT_H_
