// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/py_spy.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/subprocess.h"

namespace holdfast::inspect {
namespace {

constexpr size_t kDumpBytesMax = 8 << 20;
constexpr size_t kErrorCharsMax = 200;

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsPythonName(const std::string& name) {
  return name.rfind("python", 0) == 0 &&
         name.find_first_not_of("0123456789.t", 6) == std::string::npos;
}

bool IsProgram(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// Nobody but this process's user and root can have put it there.
bool IsTrusted(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && (info.st_uid == 0 || info.st_uid == ::geteuid()) &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// A directory further up that others may write lets them move what lies below.
bool IsTrustedAllTheWay(std::string path) {
  while (!path.empty() && IsTrusted(path)) {
    if (path == "/") return true;
    path = DirName(path);
  }
  return false;
}

std::string RealPath(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  const std::string out = real == nullptr ? "" : real;
  std::free(real);
  return out;
}

std::vector<std::string> BesideInterpreter(const ProcFs& proc, pid_t pid) {
  std::vector<std::string> found;
  const std::vector<std::string> arguments = proc.Arguments(pid);
  if (!arguments.empty() && arguments[0].rfind('/', 0) == 0)
    found.push_back(JoinPath(DirName(arguments[0]), "py-spy"));
  if (const auto exe = proc.ReadLink(pid, "exe"); exe.ok())
    found.push_back(JoinPath(DirName(*exe), "py-spy"));
  return found;
}

std::string TextOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

bool IsPython(const ProcFs& proc, pid_t pid) {
  const auto exe = proc.ReadLink(pid, "exe");
  return exe.ok() && IsPythonName(BaseName(*exe));
}

absl::StatusOr<std::string> FindPySpy(const ProcFs& proc, pid_t pid, const std::string& path) {
  std::string refused;
  const auto owner = proc.Owner(pid);
  const bool ours = owner.ok() && *owner == ::geteuid();  // its directory's code runs as us already
  for (const std::string& candidate : BesideInterpreter(proc, pid)) {
    if (!IsProgram(candidate)) continue;
    if (ours) return candidate;
    // Links and /proc/PID lead where another user wants them to, now or later.
    const std::string real = RealPath(candidate);
    if (real.rfind("/proc/", 0) != 0 && IsTrustedAllTheWay(real)) return real;
    refused = candidate;
  }
  for (const absl::string_view part : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const std::string candidate = JoinPath(std::string(part), "py-spy");
    if (part[0] == '/' && IsProgram(candidate)) return candidate;
  }
  if (refused.empty()) return absl::NotFoundError("no py-spy beside the job's python nor in PATH");
  return absl::PermissionDeniedError(
      absl::StrCat(refused, " may be another user's program and is not run; put one into PATH"));
}

absl::StatusOr<std::vector<PythonFrame>> ParseDump(const std::string& json, pid_t pid) {
  const nlohmann::json dump = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!dump.is_array()) return absl::InternalError("py-spy wrote no list of threads");
  for (const nlohmann::json& thread : dump) {
    if (!thread.is_object()) continue;
    const auto id = thread.find("os_thread_id");
    const bool main = id != thread.end() && id->is_number_integer() && *id == pid;
    const auto frames = thread.find("frames");
    // In another pid namespace the number is another one; there the name tells.
    if ((!main && TextOf(thread, "thread_name") != "MainThread") || frames == thread.end() ||
        !frames->is_array())
      continue;
    std::vector<PythonFrame> out;
    for (const nlohmann::json& frame : *frames) {
      if (!frame.is_object() || out.size() == kFramesMax) continue;
      const auto line = frame.find("line");
      out.push_back({TextOf(frame, "name"), TextOf(frame, "filename"),
                     line != frame.end() && line->is_number_integer() ? line->get<int64_t>() : 0});
    }
    return out;
  }
  return absl::InternalError("py-spy saw no main thread");
}

absl::StatusOr<std::vector<PythonFrame>> PythonStack(const std::string& py_spy, pid_t pid) {
  ProgramOptions options;
  options.deadline_ms = kPySpyDeadlineMs;
  options.output_bytes_max = kDumpBytesMax;
  const auto result =
      RunProgram({py_spy, "dump", "--json", "--nonblocking", "--pid", absl::StrCat(pid)}, options);
  if (!result.ok()) return result.status();
  if (result->exit_code != 0) {
    std::string said = result->error_output.substr(0, kErrorCharsMax);
    said = absl::StrJoin(absl::StrSplit(said, '\n', absl::SkipWhitespace()), "; ");
    return absl::InternalError(absl::StrCat("py-spy: ", said));
  }
  return ParseDump(result->output, pid);
}

std::string StackText(const std::vector<PythonFrame>& frames, size_t most) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(most, frames.size()); ++i)
    parts.push_back(
        absl::StrCat(frames[i].function, " (", frames[i].file, ":", frames[i].line, ")"));
  return absl::StrJoin(parts, " < ");
}

}  // namespace holdfast::inspect
