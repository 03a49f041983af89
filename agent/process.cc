// SPDX-License-Identifier: Apache-2.0
#include "agent/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"

namespace holdfast::agent {
namespace {

constexpr size_t kEnvironBytesMax = 4 << 20;
constexpr uid_t kNobody = ~uid_t{0};
constexpr int kGenerationsMax = 64;
constexpr char kCgroupRoot[] = "/sys/fs/cgroup";

std::string ProcPath(pid_t pid, const char* file) { return absl::StrCat("/proc/", pid, "/", file); }

// Value of "K" in a block of NUL-terminated "K=V".
std::string_view EnvironValue(std::string_view environ_block, std::string_view key) {
  while (!environ_block.empty()) {
    const size_t end = environ_block.find('\0');
    const std::string_view entry = environ_block.substr(0, end);
    if (entry.size() > key.size() && entry[key.size()] == '=' &&
        entry.substr(0, key.size()) == key) {
      return entry.substr(key.size() + 1);
    }
    if (end == std::string_view::npos) break;
    environ_block.remove_prefix(end + 1);
  }
  return {};
}

// Of the process itself, which its environment cannot forge.
uid_t UidOf(pid_t pid) {
  struct stat info {};
  return ::stat(absl::StrCat("/proc/", pid).c_str(), &info) == 0 ? info.st_uid : kNobody;
}

bool IsOurKeeper(pid_t pid) { return ReadComm(pid) == kKeeperComm && UidOf(pid) == ::geteuid(); }

bool Matches(pid_t pid, const std::string& socket_prefix, const std::string& state_uuid,
             FoundProcess* out) {
  const std::optional<std::string> block =
      ReadSmallFile(ProcPath(pid, "environ"), kEnvironBytesMax);
  if (!block.has_value() || block->empty()) return false;
  const std::string_view job = EnvironValue(*block, "HOLDFAST_JOB");
  const std::string_view socket = EnvironValue(*block, "HOLDFAST_SOCKET");
  if (job.empty() || socket.substr(0, socket_prefix.size()) != socket_prefix) return false;
  if (!state_uuid.empty() && EnvironValue(*block, "HOLDFAST_STATE_UUID") != state_uuid)
    return false;
  *out = {pid, std::string(job), std::string(socket), ReadComm(pid)};
  out->uid = UidOf(pid);
  const std::string_view attempt = EnvironValue(*block, "HOLDFAST_ATTEMPT");
  if (!absl::SimpleAtoi(absl::string_view(attempt.data(), attempt.size()), &out->attempt))
    out->attempt = 0;
  return true;
}

// /proc/<pid>/stat from the state on; empty when there is no such process.
std::string StatBehindName(pid_t pid) {
  const std::string stat = ReadSmallFile(ProcPath(pid, "stat")).value_or("");
  const size_t close = stat.rfind(')');  // the name may hold anything, also ')'
  return close == std::string::npos || close + 2 >= stat.size() ? "" : stat.substr(close + 2);
}

// Of `pid` itself and its parents.
template <typename Predicate>
bool AnyOfParents(pid_t pid, const Predicate& holds) {
  // A chain of parents is short; the bound ends a walk over numbers that change under it.
  for (int generation = 0; generation < kGenerationsMax && pid > 1; ++generation) {
    if (holds(pid)) return true;
    const std::string stat = StatBehindName(pid);
    if (stat.size() < 3) return false;
    pid = std::atoi(stat.c_str() + 2);  // "S PPID ..."
  }
  return false;
}

// By its arguments, as SpawnKeeper gives them: a keeper has no environment of a job.
bool MatchesKeeper(pid_t pid, const std::string& directory_prefix, FoundProcess* out) {
  if (!IsOurKeeper(pid)) return false;
  const std::string arguments = ReadSmallFile(ProcPath(pid, "cmdline")).value_or("");
  const std::vector<std::string> words = absl::StrSplit(arguments, '\0');
  const auto flag = std::find(words.begin(), words.end(), "--dir");
  if (flag == words.end() || flag + 1 == words.end()) return false;
  const std::string& directory = *(flag + 1);
  if (absl::StrCat(directory, "/").rfind(directory_prefix, 0) != 0) return false;
  *out = {pid, directory.substr(directory.rfind('/') + 1), absl::StrCat(directory, "/sock"),
          kKeeperComm};
  out->keeper = true;
  return true;
}

// Every process for which `matches` is true.
template <typename Matcher>
std::vector<FoundProcess> FindProcesses(const Matcher& matches) {
  std::vector<FoundProcess> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc.get())) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == ::getpid()) continue;
    FoundProcess process;
    if (matches(pid, &process)) found.push_back(std::move(process));
  }
  return found;
}

bool IsCgroup2(const std::string& directory) {
  return ::access(absl::StrCat(directory, "/cgroup.procs").c_str(), F_OK) == 0;
}

std::optional<uint64_t> Counter(const std::string& path, std::string_view key) {
  const std::optional<std::string> text = ReadSmallFile(path);
  if (!text.has_value()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t value = 0;
    if (std::string_view(parts.first.data(), parts.first.size()) == key &&
        absl::SimpleAtoi(parts.second, &value))
      return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ReadSmallFile(const std::string& path, size_t bytes_max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  char buffer[16384];
  while (text.size() < bytes_max) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

UniqueFd OpenPidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool PidfdExited(const UniqueFd& pidfd) {
  pollfd p{pidfd.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

std::string ReadComm(pid_t pid) {
  std::string text = ReadSmallFile(ProcPath(pid, "comm")).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

char ReadProcessState(pid_t pid) {
  const std::string stat = StatBehindName(pid);
  return stat.empty() ? '\0' : stat[0];
}

bool IsTraced(pid_t pid) {
  const std::string status = ReadSmallFile(ProcPath(pid, "status")).value_or("");
  const size_t at = status.find("TracerPid:");
  return at != std::string::npos && std::atoll(status.c_str() + at + 10) != 0;
}

std::optional<std::vector<pid_t>> ReadChildren(pid_t pid) {
  const std::optional<std::string> text =
      ReadSmallFile(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  if (!text.has_value()) return std::nullopt;
  std::vector<pid_t> children;
  for (const absl::string_view word : absl::StrSplit(*text, ' ', absl::SkipWhitespace())) {
    int child = 0;
    if (absl::SimpleAtoi(word, &child)) children.push_back(child);
  }
  return children;
}

std::vector<FoundProcess> FindRankProcesses(const std::string& socket_prefix,
                                            const std::string& state_uuid) {
  return FindProcesses([&](pid_t pid, FoundProcess* process) {
    return Matches(pid, socket_prefix, state_uuid, process);
  });
}

std::vector<FoundProcess> FindKeepersAndRanks(const std::string& directory_prefix) {
  return FindProcesses([&](pid_t pid, FoundProcess* process) {
    return MatchesKeeper(pid, directory_prefix, process) ||
           Matches(pid, directory_prefix, /*state_uuid=*/"", process);
  });
}

bool DescendsFrom(pid_t pid, pid_t ancestor) {
  return AnyOfParents(pid, [ancestor](pid_t parent) { return parent == ancestor; });
}

bool IsOurs(const FoundProcess& process) {
  return process.uid == ::geteuid() || AnyOfParents(process.pid, IsOurKeeper);
}

UniqueFd KillFound(const FoundProcess& process) {
  UniqueFd pidfd = OpenPidfd(process.pid);
  if (!pidfd.valid()) return {};
  FoundProcess again;
  const bool matches =
      process.keeper
          ? MatchesKeeper(process.pid, absl::StrCat(DirName(process.socket), "/"), &again)
          : Matches(process.pid, process.socket, "", &again);
  if (!matches || again.job != process.job) return {};
  if (::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) != 0) return {};
  return pidfd;
}

CgroupPaths ReadCgroups(pid_t pid) {
  CgroupPaths paths;
  const std::string text = ReadSmallFile(ProcPath(pid, "cgroup")).value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2] == "/") continue;
    if (parts[1].empty()) {
      const std::string hybrid = absl::StrCat(kCgroupRoot, "/unified", parts[2]);
      paths.unified = IsCgroup2(hybrid) ? hybrid : absl::StrCat(kCgroupRoot, parts[2]);
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    for (const std::string& controller : controllers) {
      if (controller == "freezer")
        paths.freezer_v1 = absl::StrCat(kCgroupRoot, "/freezer", parts[2]);
      if (controller == "memory") paths.memory_v1 = absl::StrCat(kCgroupRoot, "/memory", parts[2]);
    }
  }
  return paths;
}

bool IsFrozen(const CgroupPaths& paths) {
  if (!paths.freezer_v1.empty()) {
    const std::string state =
        ReadSmallFile(absl::StrCat(paths.freezer_v1, "/freezer.state")).value_or("");
    if (state.rfind("FROZEN", 0) == 0 || state.rfind("FREEZING", 0) == 0) return true;
  }
  return !paths.unified.empty() &&
         Counter(absl::StrCat(paths.unified, "/cgroup.events"), "frozen") == 1u;
}

std::optional<uint64_t> OomKills(const CgroupPaths& paths) {
  if (!paths.memory_v1.empty()) {
    if (const auto n = Counter(absl::StrCat(paths.memory_v1, "/memory.oom_control"), "oom_kill"))
      return n;
  }
  if (!paths.unified.empty())
    return Counter(absl::StrCat(paths.unified, "/memory.events"), "oom_kill");
  return std::nullopt;
}

}  // namespace holdfast::agent
