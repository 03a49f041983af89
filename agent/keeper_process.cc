// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "base/ids.h"
#include "base/status.h"

extern char** environ;

namespace holdfast::agent {
namespace {

constexpr int kOwnerFd = 3;  // in the keeper

// Set up so that the keeper starts as if from an empty shell: see the 30 failings of daemons, 3
// and 5.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
};

// Ours minus what belongs to this daemon alone.
std::vector<char*> KeeperEnvironment() {
  std::vector<char*> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (text.rfind("NOTIFY_SOCKET=", 0) == 0 || text.rfind("WATCHDOG_", 0) == 0 ||
        text.rfind("LISTEN_", 0) == 0)
      continue;
    if (text.rfind("HOLDFAST_KILL_POINT=", 0) == 0) continue;
    env.push_back(*entry);
  }
  env.push_back(nullptr);
  return env;
}

// Empty when this program's own path is not to be had.
std::string Sibling(const std::string& name) {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  if (n <= 0 || n == static_cast<ssize_t>(sizeof self)) return "";
  const std::string path(self, static_cast<size_t>(n));
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), name);
}

}  // namespace

absl::StatusOr<pid_t> SpawnKeeper(const KeeperCommand& command) {
  SpawnSetup setup;
  const std::string log = absl::StrCat(command.directory, "/keeper.log");
  posix_spawn_file_actions_addopen(&setup.actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&setup.actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0640);
  posix_spawn_file_actions_adddup2(&setup.actions, 1, 2);
  const bool owned = command.owner_fd >= 0;
  if (owned) posix_spawn_file_actions_adddup2(&setup.actions, command.owner_fd, kOwnerFd);
  posix_spawn_file_actions_addclosefrom_np(&setup.actions, owned ? kOwnerFd + 1 : kOwnerFd);
  posix_spawn_file_actions_addchdir_np(&setup.actions, "/");
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGKILL);
  sigdelset(&all, SIGSTOP);
  posix_spawnattr_setsigmask(&setup.attributes, &none);
  posix_spawnattr_setsigdefault(&setup.attributes, &all);
  posix_spawnattr_setflags(&setup.attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> words = {command.binary,
                                    "--dir",
                                    command.directory,
                                    "--job",
                                    std::to_string(command.job),
                                    "--max-ranks",
                                    std::to_string(command.ranks_max)};
  if (owned) words.insert(words.end(), {"--owner-fd", std::to_string(kOwnerFd)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> env = KeeperEnvironment();
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, command.binary.c_str(), &setup.actions, &setup.attributes,
                                   argv.data(), env.data());
  if (error != 0)
    return ErrnoStatus(error, absl::StrCat("start ", command.binary, " in ", command.directory));
  return pid;
}

std::optional<pid_t> FindKeeper(const std::string& directory) {
  const std::optional<std::string> text = ReadSmallFile(absl::StrCat(directory, "/pid"));
  if (!text.has_value()) return std::nullopt;
  const auto pid = static_cast<pid_t>(std::atoi(text->c_str()));
  if (pid <= 1 || ReadComm(pid) != kKeeperComm || ReadProcessState(pid) == 'Z') return std::nullopt;
  // The number may have been given to the keeper of another directory meanwhile.
  const std::string arguments = ReadSmallFile(absl::StrCat("/proc/", pid, "/cmdline")).value_or("");
  const std::string wanted =
      absl::StrCat("--dir", std::string(1, '\0'), directory, std::string(1, '\0'));
  if (arguments.find(wanted) == std::string::npos) return std::nullopt;
  return pid;
}

std::string SiblingProgram(const std::string& name) {
  const std::string path = Sibling(name);
  return !path.empty() && ::access(path.c_str(), X_OK) == 0 ? path : name;
}

std::string SiblingFile(const std::string& name) {
  const std::string path = Sibling(name);
  return !path.empty() && ::access(path.c_str(), R_OK) == 0 ? path : "";
}

}  // namespace holdfast::agent
