// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/proc_fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast::inspect {
namespace {

absl::Status ProcError(int error, const std::string& path) {
  // A process that ends while its file is read.
  if (error == ESRCH) return absl::NotFoundError(absl::StrCat(path, ": no such process"));
  if (error == EACCES || error == EPERM)
    return absl::PermissionDeniedError(absl::StrCat(path, ": it is another user's"));
  return ErrnoStatus(error, path);
}

// The numeric names of a directory, in order; false when it cannot be listed (errno).
bool ListNumbers(const std::string& path, size_t most, std::vector<int>* out) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (dir == nullptr) return false;
  while (const dirent* entry = ::readdir(dir.get())) {
    int number = 0;
    if (out->size() < most && absl::SimpleAtoi(entry->d_name, &number) && number >= 0)
      out->push_back(number);
  }
  std::sort(out->begin(), out->end());
  return true;
}

std::vector<absl::string_view> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
}

// strtoull takes signs and blanks that no kernel writes.
std::optional<uint64_t> ParseNumber(absl::string_view word, int base) {
  const std::string text(word);
  if (text.empty() || !absl::ascii_isxdigit(static_cast<unsigned char>(text[0])))
    return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(text.c_str(), &end, base);
  if (errno != 0 || *end != '\0') return std::nullopt;
  return value;
}

}  // namespace

std::optional<ProcessStat> ParseStat(const std::string& text) {
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');  // the name may hold anything, also ')'
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  const std::vector<absl::string_view> words = Words(absl::string_view(text).substr(close + 1));
  ProcessStat out;
  // Fields 1 and 3 to 22 of proc(5), the name aside.
  uint64_t user = 0, system = 0;
  if (words.size() < 20 || words[0].size() != 1 ||
      !absl::SimpleAtoi(text.substr(0, open), &out.pid) || out.pid <= 0 ||
      !absl::SimpleAtoi(words[1], &out.parent) || !absl::SimpleAtoi(words[3], &out.session) ||
      !absl::SimpleAtoi(words[11], &user) || !absl::SimpleAtoi(words[12], &system) ||
      !absl::SimpleAtoi(words[17], &out.threads) || !absl::SimpleAtoi(words[19], &out.start_ticks))
    return std::nullopt;
  out.name = text.substr(open + 1, close - open - 1);
  out.state = words[0][0];
  out.cpu_ticks = user + system;
  return out;
}

std::optional<uint64_t> ParseField(const std::string& text, const std::string& key, int base) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() <= key.size() || line.substr(0, key.size()) != key || line[key.size()] != ':')
      continue;
    const std::vector<absl::string_view> words = Words(line.substr(key.size() + 1));
    return words.empty() ? std::nullopt : ParseNumber(words[0], base);
  }
  return std::nullopt;
}

std::optional<IoCounters> ParseIo(const std::string& text) {
  const auto read = ParseField(text, "rchar"), written = ParseField(text, "wchar");
  const auto storage_read = ParseField(text, "read_bytes");
  const auto storage_written = ParseField(text, "write_bytes");
  if (!read || !written || !storage_read || !storage_written) return std::nullopt;
  return IoCounters{*read, *written, *storage_read, *storage_written};
}

std::optional<SchedCounters> ParseSchedstat(const std::string& text) {
  const std::vector<absl::string_view> words = Words(text);
  SchedCounters out;
  if (words.size() < 3 || !absl::SimpleAtoi(words[0], &out.run_ns) ||
      !absl::SimpleAtoi(words[1], &out.queued_ns) || !absl::SimpleAtoi(words[2], &out.slices))
    return std::nullopt;
  return out;
}

std::optional<SyscallLine> ParseSyscall(const std::string& text) {
  const std::vector<absl::string_view> words = Words(text);
  SyscallLine out;
  if (words.empty()) return std::nullopt;
  if (words[0] == "running") return out;
  if (!absl::SimpleAtoi(words[0], &out.number)) return std::nullopt;
  if (out.number < 0) {
    out.where = SyscallLine::Where::kOutside;
    out.number = -1;
    return out;
  }
  if (words.size() < 7) return std::nullopt;
  for (size_t i = 0; i < out.args.size(); ++i) {
    const auto value = ParseNumber(words[i + 1], 16);
    if (!value) return std::nullopt;
    out.args[i] = *value;
  }
  out.where = SyscallLine::Where::kInside;
  return out;
}

absl::StatusOr<std::string> ProcFs::Read(pid_t pid, const std::string& file) const {
  const std::string path = absl::StrCat(root_, "/", pid, "/", file);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ProcError(errno, path);
  std::string text;
  char block[16384];
  while (text.size() < kProcFileBytesMax) {
    const ssize_t n = ::read(fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ProcError(errno, path);
    if (n == 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  return text;
}

absl::StatusOr<std::string> ProcFs::ReadLink(pid_t pid, const std::string& link) const {
  const std::string path = absl::StrCat(root_, "/", pid, "/", link);
  char target[PATH_MAX];
  const ssize_t n = ::readlink(path.c_str(), target, sizeof target);
  if (n < 0) return ProcError(errno, path);
  return std::string(target, static_cast<size_t>(n));
}

absl::StatusOr<std::string> ProcFs::ReadMemory(pid_t pid, uint64_t address, size_t bytes) const {
  const std::string path = absl::StrCat(root_, "/", pid, "/mem");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ProcError(errno, path);
  std::string out(bytes, '\0');
  const ssize_t n = ::pread(fd.get(), out.data(), bytes, static_cast<off_t>(address));
  if (n < 0) return ProcError(errno, path);
  out.resize(static_cast<size_t>(n));
  return out;
}

std::vector<pid_t> ProcFs::Pids() const {
  std::vector<pid_t> pids;
  ListNumbers(root_, kProcessesMax, &pids);
  return pids;
}

std::vector<pid_t> ProcFs::Threads(pid_t pid) const {
  std::vector<pid_t> threads;
  ListNumbers(absl::StrCat(root_, "/", pid, "/task"), kThreadsMax, &threads);
  return threads;
}

absl::StatusOr<std::vector<int>> ProcFs::Descriptors(pid_t pid) const {
  const std::string path = absl::StrCat(root_, "/", pid, "/fd");
  std::vector<int> descriptors;
  if (!ListNumbers(path, kDescriptorsMax, &descriptors)) return ProcError(errno, path);
  return descriptors;
}

absl::StatusOr<ProcessStat> ProcFs::Stat(pid_t pid) const {
  HF_ASSIGN_OR_RETURN(const std::string text, Read(pid, "stat"));
  std::optional<ProcessStat> stat = ParseStat(text);
  if (!stat || stat->pid != pid)
    return absl::InternalError(absl::StrCat(root_, "/", pid, "/stat makes no sense"));
  return *std::move(stat);
}

std::vector<ProcessStat> ProcFs::AllStats() const {
  std::vector<ProcessStat> all;
  for (const pid_t pid : Pids()) {
    if (auto stat = Stat(pid); stat.ok()) all.push_back(*std::move(stat));
  }
  return all;
}

std::vector<std::string> ProcFs::Arguments(pid_t pid) const {
  auto text = Read(pid, "cmdline");
  if (!text.ok() || text->empty()) return {};
  if (text->back() == '\0') text->pop_back();
  return absl::StrSplit(*text, '\0');
}

absl::StatusOr<std::string> ProcFs::EnvironValue(pid_t pid, const std::string& name) const {
  HF_ASSIGN_OR_RETURN(const std::string text, Read(pid, "environ"));
  const std::string start = absl::StrCat(name, "=");
  for (const absl::string_view entry : absl::StrSplit(text, '\0')) {
    if (entry.substr(0, start.size()) == start) return std::string(entry.substr(start.size()));
  }
  return std::string();
}

absl::StatusOr<uid_t> ProcFs::Owner(pid_t pid) const {
  HF_ASSIGN_OR_RETURN(const std::string text, Read(pid, "status"));
  const auto uid = ParseField(text, "Uid");
  if (!uid) return absl::InternalError(absl::StrCat(root_, "/", pid, "/status names no user"));
  return static_cast<uid_t>(*uid);
}

std::vector<ProcessStat> Below(const std::vector<ProcessStat>& all, pid_t pid) {
  std::multimap<pid_t, const ProcessStat*> children;
  for (const ProcessStat& stat : all) children.emplace(stat.parent, &stat);
  std::vector<ProcessStat> out;
  std::vector<const ProcessStat*> open;
  std::set<pid_t> seen = {pid};  // numbers that change while they are read can make a circle
  const auto open_children = [&](pid_t parent) {
    const auto range = children.equal_range(parent);
    std::vector<const ProcessStat*> found;
    for (auto it = range.first; it != range.second; ++it) found.push_back(it->second);
    open.insert(open.end(), found.rbegin(), found.rend());
  };
  open_children(pid);
  while (!open.empty()) {
    const ProcessStat* next = open.back();
    open.pop_back();
    if (!seen.insert(next->pid).second) continue;
    out.push_back(*next);
    open_children(next->pid);
  }
  return out;
}

}  // namespace holdfast::inspect
