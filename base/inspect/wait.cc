// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/wait.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/inspect/sockets.h"
#include "base/inspect/syscalls.h"
#include "base/status.h"

namespace holdfast::inspect {
namespace {

constexpr size_t kPathBytesMax = 4096;
constexpr size_t kPage = 4096;

// A path in the process's memory. It may end right before a page that is not there: read page by
// page. Empty when it cannot be read.
std::string PathAt(const ProcFs& proc, pid_t pid, uint64_t address) {
  std::string path;
  while (path.size() < kPathBytesMax) {
    const uint64_t at = address + path.size();
    const auto part = proc.ReadMemory(pid, at, static_cast<size_t>(kPage - at % kPage));
    if (!part.ok() || part->empty()) return "";
    const size_t end = part->find('\0');
    path += part->substr(0, end);
    if (end != std::string::npos) return path;
  }
  return "";
}

// As the process means it; empty when that cannot be told.
std::string WholePath(const ProcFs& proc, pid_t pid, int directory_fd, const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  const auto directory =
      proc.ReadLink(pid, directory_fd == AT_FDCWD ? "cwd" : absl::StrCat("fd/", directory_fd));
  return directory.ok() ? absl::StrCat(*directory, "/", path) : "";
}

void AddDescriptor(const ProcFs& proc, pid_t pid, int fd, Wait* wait) {
  auto target = DescriptorTarget(proc, pid, fd);
  wait->fds.push_back(fd);
  wait->targets.push_back(target.ok() ? *std::move(target) : "");
}

void AddPolled(const ProcFs& proc, pid_t pid, const SyscallLine& line, Wait* wait) {
  const size_t count = static_cast<size_t>(std::min<uint64_t>(line.args[1], kPolledDescriptorsMax));
  const auto bytes = proc.ReadMemory(pid, line.args[0], count * sizeof(pollfd));
  if (!bytes.ok()) return;
  for (size_t i = 0; (i + 1) * sizeof(pollfd) <= bytes->size(); ++i) {
    pollfd entry;
    std::memcpy(&entry, bytes->data() + i * sizeof entry, sizeof entry);
    if (entry.fd >= 0) AddDescriptor(proc, pid, entry.fd, wait);
  }
}

// Of waitid(P_PIDFD): the process that a descriptor stands for; 0 when that cannot be told.
pid_t PidOfPidfd(const ProcFs& proc, pid_t pid, int fd) {
  const auto info = proc.Read(pid, absl::StrCat("fdinfo/", fd));
  return info.ok() ? static_cast<pid_t>(ParseField(*info, "Pid").value_or(0)) : 0;
}

// Pids in arguments are those of the process's own namespace, which may not be ours.
bool SharesPids(const ProcFs& proc, pid_t pid) {
  const auto status = proc.Read(pid, "status");
  if (!status.ok()) return false;
  const size_t at = status->find("NSpid:");
  if (at == std::string::npos) return true;  // a kernel without pid namespaces
  const std::string line = status->substr(at, status->find('\n', at) - at);
  return ParseField(line, "NSpid") == static_cast<uint64_t>(pid) &&
         std::count(line.begin(), line.end(), '\t') == 1;
}

bool SetChild(const ProcFs& proc, pid_t pid, CallShape shape, const SyscallLine& line, Wait* wait) {
  wait->kind = WaitKind::kChild;
  const pid_t first = static_cast<pid_t>(line.args[0]);
  const pid_t second = static_cast<pid_t>(line.args[1]);
  if (shape == CallShape::kWaitPid) {
    if (first > 0 && SharesPids(proc, pid)) wait->child = first;
    return first == -1 || wait->child > 0;
  }
  if (first == P_PID && SharesPids(proc, pid)) wait->child = second;
  if (first == P_PIDFD) wait->child = PidOfPidfd(proc, pid, second);
  return first == P_ALL || wait->child > 0;
}

void SetPath(const ProcFs& proc, pid_t pid, bool at, const SyscallLine& line, Wait* wait) {
  wait->kind = WaitKind::kPath;
  const int directory = at ? static_cast<int>(line.args[0]) : AT_FDCWD;
  wait->path = WholePath(proc, pid, directory, PathAt(proc, pid, line.args[at ? 1 : 0]));
}

void SetCall(const ProcFs& proc, pid_t pid, const SyscallLine& line, Wait* wait) {
  const CallInfo* call = FindCall(line.number);
  wait->kind = WaitKind::kOther;
  wait->call = call == nullptr ? absl::StrCat("system call ", line.number) : call->name;
  switch (call == nullptr ? CallShape::kOther : call->shape) {
    case CallShape::kFd:
      wait->kind = WaitKind::kDescriptor;
      return AddDescriptor(proc, pid, static_cast<int>(line.args[0]), wait);
    case CallShape::kPoll:
      wait->kind = line.args[1] == 0 ? WaitKind::kTime : WaitKind::kPoll;
      return AddPolled(proc, pid, line, wait);
    case CallShape::kPath:
    case CallShape::kAtPath:
      return SetPath(proc, pid, call->shape == CallShape::kAtPath, line, wait);
    case CallShape::kFutex:
      wait->kind = WaitKind::kFutex;
      return;
    case CallShape::kTime:
      wait->kind = WaitKind::kTime;
      return;
    case CallShape::kWaitPid:
    case CallShape::kWaitId:
      // For one of a process group, or for one that has no number here: which is not known.
      if (!SetChild(proc, pid, call->shape, line, wait)) wait->kind = WaitKind::kOther;
      return;
    case CallShape::kOther:
      return;
  }
}

std::string OfTarget(const std::string& target, int fd) {
  return target.empty() ? absl::StrCat("descriptor ", fd)
                        : absl::StrCat(target, " (descriptor ", fd, ")");
}

}  // namespace

absl::StatusOr<std::string> DescriptorTarget(const ProcFs& proc, pid_t pid, int fd) {
  HF_ASSIGN_OR_RETURN(const std::string link, proc.ReadLink(pid, absl::StrCat("fd/", fd)));
  constexpr absl::string_view kSocket = "socket:[";
  uint64_t inode = 0;
  if (link.rfind(std::string(kSocket), 0) != 0 || link.back() != ']' ||
      !absl::SimpleAtoi(link.substr(kSocket.size(), link.size() - kSocket.size() - 1), &inode))
    return link;
  return SocketOf(proc, pid, inode).value_or(link);
}

Wait ExplainWait(const ProcFs& proc, pid_t pid, const SyscallLine& line) {
  Wait wait;
  if (line.where == SyscallLine::Where::kRunning) return wait;
  if (line.where == SyscallLine::Where::kOutside)
    wait.kind = WaitKind::kOutside;
  else
    SetCall(proc, pid, line, &wait);
  const auto kernel = proc.Read(pid, "wchan");
  if (kernel.ok() && *kernel != "0") wait.kernel = *kernel;  // "0": hidden, or it runs again
  return wait;
}

absl::StatusOr<Wait> ReadWait(const ProcFs& proc, pid_t pid) {
  HF_ASSIGN_OR_RETURN(const std::string text, proc.Read(pid, "syscall"));
  const auto line = ParseSyscall(text);
  if (!line)
    return absl::InternalError(absl::StrCat(proc.root(), "/", pid, "/syscall makes no sense"));
  return ExplainWait(proc, pid, *line);
}

std::string WaitText(const Wait& wait) {
  switch (wait.kind) {
    case WaitKind::kNone:
      return "";
    case WaitKind::kDescriptor:
      return absl::StrCat(wait.call, " of ", OfTarget(wait.targets[0], wait.fds[0]));
    case WaitKind::kPoll: {
      std::vector<std::string> of;
      for (size_t i = 0; i < wait.fds.size(); ++i)
        of.push_back(OfTarget(wait.targets[i], wait.fds[i]));
      return of.empty() ? wait.call : absl::StrCat(wait.call, " of ", absl::StrJoin(of, ", "));
    }
    case WaitKind::kPath:
      return wait.path.empty() ? wait.call : absl::StrCat(wait.call, " of ", wait.path);
    case WaitKind::kChild:
      return wait.child == 0 ? absl::StrCat(wait.call, " for any child")
                             : absl::StrCat(wait.call, " for child ", wait.child);
    case WaitKind::kOutside:
      return wait.kernel.empty() ? "no system call"
                                 : absl::StrCat("the kernel (", wait.kernel, ")");
    default:
      return wait.call;
  }
}

const std::vector<pid_t>& PipeWriters::Of(const std::string& target) {
  if (!read_) Read();
  return writers_[target];
}

void PipeWriters::Read() {
  read_ = true;
  for (const pid_t pid : pids_) {
    const auto descriptors = proc_.Descriptors(pid);
    if (!descriptors.ok()) continue;
    for (const int fd : *descriptors) {
      const auto link = proc_.ReadLink(pid, absl::StrCat("fd/", fd));
      if (!link.ok() || link->rfind("pipe:[", 0) != 0) continue;
      std::vector<pid_t>& writers = writers_[*link];
      if (!writers.empty() && writers.back() == pid) continue;
      const auto info = proc_.Read(pid, absl::StrCat("fdinfo/", fd));
      const auto flags = info.ok() ? ParseField(*info, "flags", 8) : std::nullopt;
      if (flags && (*flags & O_ACCMODE) != O_RDONLY) writers.push_back(pid);
    }
  }
}

}  // namespace holdfast::inspect
