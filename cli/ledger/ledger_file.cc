// SPDX-License-Identifier: Apache-2.0
#include "cli/ledger/ledger_file.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/output.h"
#include "cli/stop_flag.h"

namespace holdfast::cli {
namespace {

constexpr mode_t kMode = 0600;  // what a job waited for is its user's affair
constexpr int64_t kLockMsMax = 2'000;
constexpr int64_t kLockPauseMs = 20;

absl::Status NotAFile(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": is no regular file; name another one with ", kLedgerVariable));
}

// The file at `path`, locked: not one that was moved away meanwhile. Never waits for the other end
// of a pipe, nor longer than kLockMsMax for who holds the lock.
absl::StatusOr<UniqueFd> OpenLocked(const std::string& path) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + kLockMsMax * kNsPerMs;
  StopFlag never;
  do {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, kMode));
    if (!fd.valid()) return ErrnoStatus(errno, path);
    struct stat ours {
    }, there{};
    if (::fstat(fd.get(), &ours) != 0) return ErrnoStatus(errno, path);
    if (!S_ISREG(ours.st_mode)) return NotAFile(path);
    const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK && errno != EINTR)
      return ErrnoStatus(errno, absl::StrCat("lock ", path));
    if (locked && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev)
      return fd;
  } while (clock.MonoNs() < end_ns && !never.WaitMs(kLockPauseMs));
  return absl::UnavailableError(
      absl::StrCat(path, ": another process has held its lock for ", kLockMsMax / 1000, " s"));
}

// All of it, or the file is as it was. `size`: of the file.
absl::Status WriteAll(int fd, std::string text, off_t size, const std::string& path) {
  char last = '\n';
  if (size > 0 && ::pread(fd, &last, 1, size - 1) == 1 && last != '\n')
    text = absl::StrCat("\n", text);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n >= 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    const absl::Status failed = ErrnoStatus(errno, path);
    if (::ftruncate(fd, size) != 0) return Annotate(failed, "half a line is left");
    return failed;
  }
  return absl::OkStatus();
}

// False when there is no such file.
absl::StatusOr<bool> ReadLines(const std::string& path, std::vector<v1::LedgerEntry>* out,
                               size_t* skipped) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 && errno == ENOENT) return false;
  if (!S_ISREG(info.st_mode)) return NotAFile(path);
  std::ifstream file(path);
  if (!file) return ErrnoStatus(errno == 0 ? EIO : errno, path);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // of a newer version
  for (std::string line; std::getline(file, line);) {
    v1::LedgerEntry entry;
    if (google::protobuf::util::JsonStringToMessage(line, &entry, options).ok() &&
        !entry.cause().empty()) {
      out->push_back(std::move(entry));
    } else {
      ++*skipped;
    }
  }
  return true;
}

}  // namespace

std::string LedgerPath() {
  if (const char* named = std::getenv(kLedgerVariable); named != nullptr) return named;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return JoinPath(home, ".local/state/holdfast/ledger.jsonl");
}

absl::Status AppendLedger(const std::string& path, const std::vector<v1::LedgerEntry>& entries) {
  if (path.empty() || entries.empty()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(DirName(path)));
  HF_ASSIGN_OR_RETURN(UniqueFd fd, OpenLocked(path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (info.st_size >= static_cast<off_t>(kLedgerFileBytesMax)) {
    if (::rename(path.c_str(), absl::StrCat(path, ".old").c_str()) != 0)
      return ErrnoStatus(errno, absl::StrCat("move ", path));
    HF_ASSIGN_OR_RETURN(fd, OpenLocked(path));
    if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  }
  std::string text;
  for (const v1::LedgerEntry& entry : entries) absl::StrAppend(&text, ToJson(entry), "\n");
  return WriteAll(fd.get(), std::move(text), info.st_size, path);
}

absl::StatusOr<std::vector<v1::LedgerEntry>> ReadLedger(const std::string& path, size_t* skipped) {
  std::vector<v1::LedgerEntry> entries;
  *skipped = 0;
  HF_ASSIGN_OR_RETURN(const bool old, ReadLines(absl::StrCat(path, ".old"), &entries, skipped));
  HF_ASSIGN_OR_RETURN(const bool now, ReadLines(path, &entries, skipped));
  if (!old && !now) {
    return absl::NotFoundError(
        absl::StrCat(path, ": no run has found anything yet (runs write it when they end)"));
  }
  return entries;
}

}  // namespace holdfast::cli
