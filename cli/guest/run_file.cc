// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/run_file.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "proto/run_key.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kLookMs = 100;
constexpr size_t kFileBytesMax = 4096;

absl::Status WriteAll(const std::string& path, const std::string& text) {
  ::unlink(path.c_str());
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("make ", path));
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(fd.get()) != 0)
    return ErrnoStatus(errno == 0 ? ENOSPC : errno, absl::StrCat("write ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteRunFile(const std::string& path, const RunFile& file) {
  const std::string fresh = absl::StrCat(path, ".new");
  absl::Status status = WriteAll(fresh, absl::StrCat(file.key, "\n", file.endpoint, "\n"));
  if (status.ok() && ::rename(fresh.c_str(), path.c_str()) != 0)
    status = ErrnoStatus(errno, absl::StrCat("rename ", fresh));
  if (status.ok()) return status;
  ::unlink(fresh.c_str());
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   "; the tasks of a step meet by this file: name a directory that "
                                   "all nodes share and this user can write, by --shared-dir"));
}

absl::StatusOr<RunFile> ReadRunFile(const std::string& path) {
  RunFile file;
  HF_ASSIGN_OR_RETURN(file.key, proto::ReadRunKeyFile(path));
  HF_ASSIGN_OR_RETURN(const std::string text, PosixFileSystem()->ReadFile(path));
  const size_t first = text.find('\n');
  const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos || text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not two lines, a key and HOST:PORT; remove it"));
  }
  file.endpoint = text.substr(first + 1, second - first - 1);
  return file;
}

absl::StatusOr<RunFile> WaitForRunFile(const std::string& path, int64_t wait_ms) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + wait_ms * kNsPerMs;
  while (true) {
    absl::StatusOr<RunFile> file = ReadRunFile(path);
    if (file.ok() || file.status().code() != absl::StatusCode::kNotFound) return file;
    if (clock.MonoNs() >= end_ns) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the first task of this step has not written ", path, " within ", wait_ms / 1000,
          " s: look at its output, and that all nodes share this "
          "directory (--shared-dir names another)"));
    }
    const timespec pause = {0, kLookMs * kNsPerMs};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace holdfast::cli
