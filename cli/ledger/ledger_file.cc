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

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr mode_t kMode = 0600;  // what a job waited for is its user's affair
constexpr int kTriesMax = 16;   // another run moved the file between open and lock, each time

// The file at `path`, locked: not one that was moved away meanwhile.
absl::StatusOr<UniqueFd> OpenLocked(const std::string& path) {
  for (int i = 0; i < kTriesMax; ++i) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kMode));
    if (!fd.valid()) return ErrnoStatus(errno, path);
    if (::flock(fd.get(), LOCK_EX) != 0) return ErrnoStatus(errno, absl::StrCat("lock ", path));
    struct stat ours {
    }, there{};
    if (::fstat(fd.get(), &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
      return fd;
  }
  return absl::UnavailableError(absl::StrCat(path, ": is moved away again and again"));
}

absl::Status WriteAll(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

bool ReadLines(const std::string& path, std::vector<v1::LedgerEntry>* out, size_t* skipped) {
  std::ifstream file(path);
  if (!file) return false;
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
  if (::fstat(fd.get(), &info) == 0 && info.st_size >= static_cast<off_t>(kLedgerFileBytesMax)) {
    if (::rename(path.c_str(), absl::StrCat(path, ".old").c_str()) != 0)
      return ErrnoStatus(errno, absl::StrCat("move ", path));
    HF_ASSIGN_OR_RETURN(fd, OpenLocked(path));
  }
  std::string text;
  for (const v1::LedgerEntry& entry : entries) absl::StrAppend(&text, ToJson(entry), "\n");
  return WriteAll(fd.get(), text, path);
}

absl::StatusOr<std::vector<v1::LedgerEntry>> ReadLedger(const std::string& path, size_t* skipped) {
  std::vector<v1::LedgerEntry> entries;
  *skipped = 0;
  const bool old = ReadLines(absl::StrCat(path, ".old"), &entries, skipped);
  if (!ReadLines(path, &entries, skipped) && !old) {
    return absl::NotFoundError(
        absl::StrCat(path, ": no run has found anything yet (runs write it when they end)"));
  }
  return entries;
}

}  // namespace holdfast::cli
