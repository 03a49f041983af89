// SPDX-License-Identifier: Apache-2.0
// What /proc says about processes: parents, sessions, children, a word of an environment. Every
// answer may be stale by the time it is used; callers repeat until nothing is left. Only libc.
// Single-threaded.
#ifndef HOLDFAST_AGENT_KEEPER_PROCS_H_
#define HOLDFAST_AGENT_KEEPER_PROCS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace holdfast::keeper {

struct ProcStat {
  char state = '?';
  pid_t parent = 0;
  pid_t session = 0;
};

// False when there is no such process.
bool ReadProcStat(pid_t pid, ProcStat* out);

// Children of all threads of `pid`, zombies included.
std::vector<pid_t> ChildrenOf(pid_t pid);

// `pid` and all its descendants that are not zombies.
std::vector<pid_t> TreeOf(pid_t pid);

// The value of `name` in the environment that `pid` was started with; empty when it is not there or
// not readable.
std::string EnvironValue(pid_t pid, const std::string& name);

// Whole of a small file; empty when it cannot be read.
std::string ReadSmallFile(const char* path, size_t bytes_max);

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_PROCS_H_
