// SPDX-License-Identifier: Apache-2.0
// What the kernel says about processes: their state, their children, their environment, their
// cgroups. All from /proc; nothing here signals anything but the process a pidfd or a fresh check
// names.
//
// Threads: any.
#ifndef HOLDFAST_AGENT_PROCESS_H_
#define HOLDFAST_AGENT_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

UniqueFd OpenPidfd(pid_t pid);            // invalid when there is no such process
bool PidfdExited(const UniqueFd& pidfd);  // also true for a zombie
inline constexpr char kKeeperComm[] = "holdfast-keeper";
std::string ReadComm(pid_t pid);   // empty when there is no such process
char ReadProcessState(pid_t pid);  // 'R', 'S', 'T', 't', 'Z', ...; 0 when there is no such process
bool IsTraced(pid_t pid);          // a debugger is attached

// Direct children, zombies included; nullopt when the kernel does not say.
std::optional<std::vector<pid_t>> ReadChildren(pid_t pid);

struct FoundProcess {
  pid_t pid = 0;
  std::string job;     // HOLDFAST_JOB
  std::string socket;  // HOLDFAST_SOCKET
  std::string comm;
  uint64_t attempt = 0;  // HOLDFAST_ATTEMPT; 0: none
  bool keeper = false;
  uid_t uid = 0;  // anybody can set these variables: whose word it is
};
// Every process whose environment has HOLDFAST_JOB and a HOLDFAST_SOCKET that begins with
// `socket_prefix`. (HOLDFAST_STATE_UUID and the socket's path together say whose it is: several
// nodes can live on one machine.) `state_uuid` empty: any.
std::vector<FoundProcess> FindRankProcesses(const std::string& socket_prefix,
                                            const std::string& state_uuid);
// Every keeper whose directory, with a slash at its end, begins with `directory_prefix`, and every
// process of a rank whose socket does; a keeper as if its environment named its job and its socket,
// and only if it runs as this process's user.
std::vector<FoundProcess> FindKeepersAndRanks(const std::string& directory_prefix);
// Whether a process is what it says on its own word: it runs as this process's user, or a parent of
// it, however far, is a keeper that does.
bool IsOurs(const FoundProcess& process);
// `ancestor` is `pid` itself or among its parents, as they are now.
bool DescendsFrom(pid_t pid, pid_t ancestor);
// Sends SIGKILL to a found process after checking once more, behind a pidfd, that it is still the
// one that was found. The pidfd: PidfdExited() says when it is gone for good, which is later than
// when it can no longer be found (its memory goes before its descriptors, devices among them).
// Invalid when it was not killed.
UniqueFd KillFound(const FoundProcess& process);

// The cgroups of a process, as paths of directories; empty where there is none of that kind or it
// is the root.
struct CgroupPaths {
  std::string freezer_v1;
  std::string memory_v1;
  std::string unified;
};
CgroupPaths ReadCgroups(pid_t pid);
bool IsFrozen(const CgroupPaths& paths);
// The counter of OOM kills of its memory cgroup; nullopt where no memory cgroup is usable.
std::optional<uint64_t> OomKills(const CgroupPaths& paths);

// Reads a small file whole; at most `bytes_max`. nullopt on any error.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t bytes_max = 1 << 20);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_PROCESS_H_
