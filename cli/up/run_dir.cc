// SPDX-License-Identifier: Apache-2.0
#include "cli/up/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/status.h"
#include "cli/state_dir.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

constexpr size_t kPidTextBytesMax = 32;
constexpr size_t kTailBytes = 16 << 10;

// A job number of eight digits is the longest we promise room for.
std::string LongestSocket(const std::string& state, int nodes) {
  return absl::StrCat(state, "/nodes/n", std::max(0, nodes - 1), "/keepers/j-99999999/sock");
}

pid_t ReadPid(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[kPidTextBytesMax];
  const ssize_t n = fd.valid() ? ::read(fd.get(), buffer, sizeof buffer) : -1;
  pid_t pid = 0;
  if (n <= 0 || !absl::SimpleAtoi(absl::string_view(buffer, static_cast<size_t>(n)), &pid))
    return 0;
  return pid;
}

// Writes a little and syncs it: permission, a read-only mount and a full disk show here and not in
// a daemon's log.
absl::Status ProveWritable(const std::string& directory) {
  const std::string path = JoinPath(directory, ".probe");
  FileSystem* fs = PosixFileSystem();
  HF_RETURN_IF_ERROR(fs->WriteFileDurably(path, std::string(4096, 'x')));
  HF_RETURN_IF_ERROR(fs->Remove(path));
  auto room = fs->FreeBytes(directory);
  if (!room.ok()) return room.status();
  if (*room < kStateFreeBytesMin) {
    return absl::ResourceExhaustedError(
        absl::StrCat("only ", proto::FormatBytes(*room), " free of the ",
                     proto::FormatBytes(kStateFreeBytesMin), " it needs"));
  }
  return absl::OkStatus();
}

// The arguments of a process, empty when it is gone.
std::vector<std::string> Arguments(pid_t pid) {
  const UniqueFd fd(::open(absl::StrCat("/proc/", pid, "/cmdline").c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[8192];
  const ssize_t n = fd.valid() ? ::read(fd.get(), buffer, sizeof buffer) : -1;
  if (n <= 0) return {};
  return absl::StrSplit(absl::string_view(buffer, static_cast<size_t>(n)), '\0', absl::SkipEmpty());
}

std::vector<std::string> ListOrNothing(const std::string& directory) {
  auto names = PosixFileSystem()->List(directory);
  return names.ok() ? *std::move(names) : std::vector<std::string>();
}

}  // namespace

RunDir::RunDir(std::string state) : state_(std::move(state)), run_(JoinPath(state_, "run")) {}

std::string RunDir::PidFile(const std::string& name) const {
  return absl::StrCat(run_, "/", name, ".pid");
}
std::string RunDir::LogFile(const std::string& name) const {
  return absl::StrCat(run_, "/", name, ".log");
}
std::string RunDir::NotifySocket() const { return JoinPath(run_, "notify.sock"); }
std::string RunDir::HoldDir() const { return JoinPath(run_, "hold"); }
bool RunDir::Held(const std::string& name) const {
  return ::access(JoinPath(HoldDir(), name).c_str(), F_OK) == 0;
}

absl::Status RunDir::CheckNothingIsHeld() const {
  const std::vector<std::string> held = ListOrNothing(HoldDir());
  if (held.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(JoinPath(HoldDir(), held.front()),
                                                    " is left from a drill and would keep ",
                                                    held.front(), " down; remove it"));
}

absl::Status RunDir::Prepare(int nodes) const {
  const std::string longest = LongestSocket(state_, nodes);
  if (longest.size() > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state directory path too long: ", state_, " has ", state_.size(), " bytes, here at most ",
        kSocketPathBytesMax - (longest.size() - state_.size()), " (a socket's path has at most ",
        kSocketPathBytesMax, "); choose a shorter one with --state"));
  }
  FileSystem* fs = PosixFileSystem();
  absl::Status status = fs->MakeDirs(HoldDir());
  if (status.ok()) status = ProveWritable(run_);
  if (!status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("cannot use the state directory ", state_, ": ", status.message(),
                     "; free space, change its permissions or choose another with --state"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> RunDir::Lock() const {
  const std::string path = JoinPath(run_, "up.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock ", path));
  return absl::AlreadyExistsError(absl::StrCat(
      "already up: pid ", ReadPid(PidFile("up")), " runs on ", state_, "; `holdfast down --state ",
      state_, "` ends it, or choose another with --state"));
}

absl::StatusOr<pid_t> RunDir::RunningUp() const {
  if (::access(run_.c_str(), F_OK) != 0) return 0;
  auto lock = Lock();
  if (lock.ok()) return 0;
  if (lock.status().code() != absl::StatusCode::kAlreadyExists) return lock.status();
  const pid_t pid = ReadPid(PidFile("up"));
  if (pid <= 0)
    return absl::UnavailableError(absl::StrCat("an up is starting on ", state_, "; try again"));
  return pid;
}

absl::Status RunDir::WritePid(const std::string& name, pid_t pid) const {
  const std::string path = PidFile(name);
  const std::string fresh = absl::StrCat(path, ".new");
  const std::string text = absl::StrCat(pid, "\n");
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", fresh));
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno == 0 ? ENOSPC : errno, absl::StrCat("write ", fresh));
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("rename ", fresh));
  return absl::OkStatus();
}

void RunDir::RemovePid(const std::string& name) const { ::unlink(PidFile(name).c_str()); }

absl::StatusOr<UniqueFd> RunDir::OpenLog(const std::string& name) const {
  const std::string path = LogFile(name);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return fd;
}

void RunDir::BoundLog(const std::string& name) const {
  struct stat st {};
  const std::string path = LogFile(name);
  if (::stat(path.c_str(), &st) != 0 || st.st_size <= kDaemonLogBytesMax) return;
  const std::string old = absl::StrCat(path, ".1");
  const UniqueFd from(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const UniqueFd to(::open(old.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!from.valid()) return;
  loff_t offset = 0;
  while (to.valid() && offset < st.st_size) {
    if (::copy_file_range(from.get(), &offset, to.get(), nullptr,
                          static_cast<size_t>(st.st_size - offset), 0) <= 0)
      break;
  }
  // Also when the copy failed (a full disk): a log must not be what fills it.
  if (::ftruncate(from.get(), 0) != 0) return;
}

std::string RunDir::LogTail(const std::string& name, size_t lines) const {
  auto file = PosixFileSystem()->OpenForRead(LogFile(name));
  if (!file.ok()) return "";
  auto size = (*file)->Size();
  if (!size.ok()) return "";
  const uint64_t offset = *size > kTailBytes ? *size - kTailBytes : 0;
  std::string text(static_cast<size_t>(*size - offset), '\0');
  auto got = (*file)->ReadAt(offset, text.data(), text.size());
  if (!got.ok()) return "";
  text.resize(*got);
  std::vector<std::string> all = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (all.size() > lines) all.erase(all.begin(), all.end() - static_cast<ptrdiff_t>(lines));
  return absl::StrJoin(all, "\n");
}

std::vector<KeeperProcess> LiveKeepers(const std::string& state) {
  std::vector<KeeperProcess> found;
  const std::string nodes = JoinPath(state, "nodes");
  for (const std::string& node : ListOrNothing(nodes)) {
    const std::string keepers = absl::StrCat(nodes, "/", node, "/keepers");
    for (const std::string& job : ListOrNothing(keepers)) {
      const std::string directory = JoinPath(keepers, job);
      const pid_t pid = ReadPid(JoinPath(directory, "pid"));
      if (pid <= 1) continue;
      // A pid alone may belong to somebody else by now.
      const std::vector<std::string> arguments = Arguments(pid);
      if (std::find(arguments.begin(), arguments.end(), directory) != arguments.end())
        found.push_back({pid, directory});
    }
  }
  return found;
}

}  // namespace holdfast::cli
