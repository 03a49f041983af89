// SPDX-License-Identifier: Apache-2.0
// What /proc shows of processes, read from outside: nothing here signals, stops or attaches to
// anything. The root is an argument, so that a test can give a tree of its own making. The parsers
// are pure and survive any input: what they cannot make sense of is nullopt, never half a value.
//
// Units: CPU time in clock ticks (sysconf(_SC_CLK_TCK) a second), start in ticks since boot,
// the scheduler's counters in nanoseconds, I/O in bytes.
// Errors: NOT_FOUND a process or file that is gone, PERMISSION_DENIED one that is another user's,
// INTERNAL anything else. A pid alone may name another process by now: pid and start_ticks together
// do not.
// Threads: any; a ProcFs has no state but its root.
#ifndef HOLDFAST_BASE_INSPECT_PROC_FS_H_
#define HOLDFAST_BASE_INSPECT_PROC_FS_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::inspect {

inline constexpr size_t kProcFileBytesMax = 4 << 20;  // what is longer is cut
inline constexpr size_t kProcessesMax = 1 << 20;      // that one look at the machine takes in
inline constexpr size_t kThreadsMax = 4096;           // of one process
inline constexpr size_t kDescriptorsMax = 65536;      // of one process

// /proc/PID/stat.
struct ProcessStat {
  pid_t pid = 0;
  std::string name;        // at most 15 bytes, any bytes
  char state = '?';        // R S D T t Z X I
  pid_t parent = 0;        // 0: none that can be seen from here
  pid_t session = 0;       // 0: of another pid namespace
  uint64_t cpu_ticks = 0;  // user and system, all threads, also ended ones
  int threads = 0;
  uint64_t start_ticks = 0;
};
std::optional<ProcessStat> ParseStat(const std::string& text);

// /proc/PID/io. Reads and writes through system calls count whatever they reach (files, pipes,
// page cache), but not recv and send; storage_* is what a disk or a network file system was asked.
struct IoCounters {
  uint64_t read = 0;
  uint64_t written = 0;
  uint64_t storage_read = 0;
  uint64_t storage_written = 0;
};
std::optional<IoCounters> ParseIo(const std::string& text);

// /proc/PID/task/TID/schedstat, of one thread.
struct SchedCounters {
  uint64_t run_ns = 0;
  uint64_t queued_ns = 0;  // ready to run, but no CPU was free
  uint64_t slices = 0;     // times it was put on a CPU
};
std::optional<SchedCounters> ParseSchedstat(const std::string& text);

// /proc/PID/syscall, of the main thread.
struct SyscallLine {
  enum class Where { kRunning, kOutside, kInside };  // kOutside: blocked, but in no system call
  Where where = Where::kRunning;
  int64_t number = -1;  // kInside only
  std::array<uint64_t, 6> args = {};
};
std::optional<SyscallLine> ParseSyscall(const std::string& text);

// The number behind "Key:" in /proc/PID/status, in `base`, or nullopt.
std::optional<uint64_t> ParseField(const std::string& text, const std::string& key, int base = 10);

class ProcFs {
 public:
  explicit ProcFs(std::string root = "/proc") : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  // A file of a process, whole, at most kProcFileBytesMax; e.g. Read(17, "task/18/schedstat").
  absl::StatusOr<std::string> Read(pid_t pid, const std::string& file) const;
  absl::StatusOr<std::string> ReadLink(pid_t pid, const std::string& link) const;
  // Bytes of its memory. They may change while they are read.
  absl::StatusOr<std::string> ReadMemory(pid_t pid, uint64_t address, size_t bytes) const;

  std::vector<pid_t> Pids() const;
  std::vector<pid_t> Threads(pid_t pid) const;
  absl::StatusOr<std::vector<int>> Descriptors(pid_t pid) const;
  absl::StatusOr<ProcessStat> Stat(pid_t pid) const;
  std::vector<ProcessStat> AllStats() const;
  std::vector<std::string> Arguments(pid_t pid) const;  // empty when there are none to see
  // The value in the environment that it was started with; "" when that has no such name.
  absl::StatusOr<std::string> EnvironValue(pid_t pid, const std::string& name) const;
  absl::StatusOr<uid_t> Owner(pid_t pid) const;  // its real user

 private:
  std::string root_;
};

// All processes below `pid`, each after its parent, `pid` itself left out; as in `all`.
std::vector<ProcessStat> Below(const std::vector<ProcessStat>& all, pid_t pid);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_PROC_FS_H_
