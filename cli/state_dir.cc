// SPDX-License-Identifier: Apache-2.0
#include "cli/state_dir.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"

namespace holdfast::cli {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsProgram(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string OwnDirectory() {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (n <= 0) return "";
  const std::string path(buffer, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/'));
}

absl::StatusOr<std::string> SocketEndpoint(const std::string& state) {
  const std::string path = JoinPath(state, "scheduler.sock");
  if (path.size() > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("state directory path too long: ", path, " has ",
                                                   path.size(), " bytes, a socket's path at most ",
                                                   kSocketPathBytesMax,
                                                   "; choose a shorter one with --state"));
  }
  return absl::StrCat("unix:", path);
}

// A word that is no address would be tried until the deadline and then called unreachable.
absl::StatusOr<std::string> CheckedEndpoint(const char* where, const std::string& endpoint) {
  if (endpoint.rfind("unix:/", 0) == 0) return endpoint;
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  const bool is_address =
      colon != std::string::npos && colon > 0 && endpoint.find('/') == std::string::npos &&
      absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port > 0 && port < 65536;
  if (is_address) return endpoint;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": \"", endpoint, "\" is neither unix:/path nor HOST:PORT"));
}

}  // namespace

Surroundings ReadSurroundings(const std::string& state_flag, const std::string& endpoint_flag) {
  Surroundings s;
  s.state_flag = state_flag;
  s.endpoint_flag = endpoint_flag;
  s.state_env = Env("HOLDFAST_STATE");
  s.endpoint_env = Env("HOLDFAST_ENDPOINT");
  s.home = Env("HOME");
  s.working_directory = WorkingDirectory();
  s.root = ::geteuid() == 0;
  return s;
}

absl::StatusOr<std::string> StateDirectory(const Surroundings& s) {
  if (!s.state_flag.empty()) return AbsolutePath(s.state_flag, s.working_directory);
  if (!s.state_env.empty()) return AbsolutePath(s.state_env, s.working_directory);
  if (s.root) return std::string("/var/lib/holdfast");
  if (s.home.empty() || s.home[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("no state directory: HOME is \"", s.home,
                                                   "\"; name one with --state or HOLDFAST_STATE"));
  }
  return AbsolutePath(".local/state/holdfast", s.home);
}

absl::StatusOr<std::string> Endpoint(const Surroundings& s) {
  if (!s.endpoint_flag.empty()) return CheckedEndpoint("--endpoint", s.endpoint_flag);
  if (s.state_flag.empty() && !s.endpoint_env.empty())
    return CheckedEndpoint("HOLDFAST_ENDPOINT", s.endpoint_env);
  auto state = StateDirectory(s);
  if (!state.ok()) return state.status();
  return SocketEndpoint(*state);
}

std::string AbsolutePath(std::string_view path, std::string_view base) {
  std::string whole(path);
  if (path.empty() || path[0] != '/') whole = absl::StrCat(std::string(base), "/", whole);
  std::vector<std::string> parts;
  for (const absl::string_view part : absl::StrSplit(whole, '/', absl::SkipEmpty())) {
    if (part != ".") parts.emplace_back(part);
  }
  return absl::StrCat("/", absl::StrJoin(parts, "/"));
}

std::string WorkingDirectory() {
  char buffer[PATH_MAX];
  return ::getcwd(buffer, sizeof buffer) == nullptr ? "/" : buffer;
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& bin_dir) {
  std::vector<std::string> places;
  if (!bin_dir.empty()) {
    places.push_back(bin_dir);
  } else {
    if (const std::string own = OwnDirectory(); !own.empty()) places.push_back(own);
    for (const absl::string_view part : absl::StrSplit(Env("PATH"), ':', absl::SkipEmpty()))
      places.emplace_back(part);
  }
  for (const std::string& place : places) {
    const std::string path = JoinPath(place, name);
    if (IsProgram(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat(
      "the program ", name, " was not found beside holdfast (", places.empty() ? "" : places[0],
      ")", bin_dir.empty() ? " nor in PATH" : "", "; install it or build it"));
}

}  // namespace holdfast::cli
