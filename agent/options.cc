// SPDX-License-Identifier: Apache-2.0
#include "agent/options.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "agent/keeper_process.h"
#include "agent/process.h"
#include "agent/version.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/step.h"
#include "proto/run_key.h"

extern char** environ;

namespace holdfast::agent {
namespace {

constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr char kLongestSocket[] = "/keepers/j-9999999999/sock";
constexpr size_t kProbeBytes = 64 << 10;
constexpr char kStopped[] =
    "stopped";  // in the lock file, where the pid of a live or dead agent stands otherwise

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" || host.rfind("127.", 0) == 0;
}

absl::Status ValidateListen(bool insecure, NodeOptions* options) {
  if (options->listen.empty()) {
    options->address = absl::StrCat("unix:", options->state_dir, "/agent.sock");
    return absl::OkStatus();
  }
  const size_t colon = options->listen.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == options->listen.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: '", options->listen, "' is not HOST:PORT"));
  }
  if (!insecure && options->key_file.empty() && !IsLoopback(options->listen.substr(0, colon))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: ", options->listen,
                     " is reachable from other machines and the "
                     "connection is not encrypted; add --insecure to say that this is wanted, or "
                     "--key-file to admit holders of a key alone"));
  }
  options->address = options->listen;
  return absl::OkStatus();
}

absl::Status WriteLock(const UniqueFd& lock, const std::string& word) {
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), word.data(), word.size(), 0) < 0)
    return ErrnoStatus(errno, "write the lock of the state directory");
  return absl::OkStatus();
}

// A file of some size can be written and synced here.
absl::Status ProbeDirectory(const std::string& directory) {
  const std::string path = JoinPath(directory, absl::StrCat(".probe.", ::getpid()));
  absl::Status status;
  {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid())
      return ErrnoStatus(errno, absl::StrCat("state directory ", directory, " cannot be written"));
    const std::string bytes(kProbeBytes, '\0');
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n != static_cast<ssize_t>(bytes.size()) || ::fsync(fd.get()) != 0) {
      status = ErrnoStatus(n >= 0 && n < static_cast<ssize_t>(bytes.size()) ? ENOSPC : errno,
                           absl::StrCat("state directory ", directory,
                                        " has no room; free some, or choose another by --state"));
    }
  }
  ::unlink(path.c_str());
  return status;
}

absl::Status MakeDirectories(const std::string& path, mode_t mode) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("create ", path));
  if (mode != 0 && ::chmod(path.c_str(), mode) != 0)
    return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  return absl::OkStatus();
}

}  // namespace

bool ParseCommandLine(int argc, char** argv, NodeOptions* out, int* exit_code) {
  CLI::App app(
      "Supervises the ranks of training jobs on one node. Started by systemd, by `holdfast up`, or "
      "by a workload "
      "manager; keepers and ranks go on when it ends.");
  app.set_version_flag("--version", std::string("holdfast-agent ") + kAgentVersion);
  bool insecure = false;
  app.add_option("--node", out->node, "Name of this node: letters, digits, '.', '_', '-'")
      ->required();
  app.add_option("--state", out->state_dir, "Directory of this node's state")->required();
  app.add_option("--scheduler", out->scheduler,
                 "Endpoint of the scheduler: unix:/path or HOST:PORT")
      ->required();
  app.add_option("--jobs-dir", out->jobs_dir,
                 "Directory of the jobs' step logs and failure evidence")
      ->required();
  app.add_option("--devices", out->devices, "simulated:FILE or none")->required();
  app.add_option("--listen", out->listen,
                 "HOST:PORT to serve other machines on, beside the Unix socket");
  app.add_option("--owner-fd", out->owner_fd, "")->group("");  // see NodeOptions
  app.add_option("--key-file", out->key_file,
                 "File of mode 0600 with a key that every caller over TCP must hold");
  app.add_flag("--insecure", insecure, "Allow --listen beyond loopback without encryption");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : kExitUsage;
    return false;
  }
  const absl::Status valid = ValidateOptions(insecure, out);
  if (!valid.ok()) {
    std::cerr << "holdfast-agent: " << valid.message() << "\n";
    *exit_code = kExitUsage;
    return false;
  }
  return true;
}

absl::Status ValidateOptions(bool insecure, NodeOptions* options) {
  if (!IsValidName(options->node)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node: '", options->node,
                     "' is not a name of 1 to 63 letters, digits, '.', '_' or '-', "
                     "the first a letter or digit"));
  }
  if (options->scheduler.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("--scheduler: '", options->scheduler,
                                                   "' is neither unix:/path nor HOST:PORT"));
  }
  std::error_code error;
  // Without symbolic links: a rank is known by the path of its keeper's socket, as the keeper sees
  // it.
  options->state_dir =
      std::filesystem::weakly_canonical(std::filesystem::absolute(options->state_dir, error), error)
          .string();
  options->jobs_dir =
      std::filesystem::absolute(options->jobs_dir, error).lexically_normal().string();
  while (options->state_dir.size() > 1 && options->state_dir.back() == '/')
    options->state_dir.pop_back();
  if (options->state_dir.size() + std::strlen(kLongestSocket) > kSocketPathMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--state: state directory path too long: '", options->state_dir, "' has ",
        options->state_dir.size(), " bytes; at most ", kSocketPathMax - std::strlen(kLongestSocket),
        ", because a Unix socket's path has at most ", kSocketPathMax, "; use a shorter path"));
  }
  HF_RETURN_IF_ERROR(ValidateListen(insecure, options));
  if (options->owner_fd >= 0 && ::fcntl(options->owner_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--owner-fd: ", options->owner_fd, " is not an open descriptor"));
  }
  if (!options->key_file.empty()) {
    HF_ASSIGN_OR_RETURN(options->run_key, proto::ReadRunKeyFile(options->key_file));
  }
  options->boot_id = ReadSmallFile("/proc/sys/kernel/random/boot_id").value_or("unknown");
  while (!options->boot_id.empty() && options->boot_id.back() == '\n') options->boot_id.pop_back();
  options->epoch =
      static_cast<uint64_t>(SystemClock().MonoNs());  // grows with every start on this boot
  options->keeper_binary = SiblingProgram("holdfast-keeper");
  options->worker_binary = SiblingProgram("holdfast-worker");
  options->tcp_store_binary = SiblingProgram("holdfast-tcp-store");
  options->standby_script = SiblingFile("holdfast-standby.py");
  options->ckpt_binary = SiblingProgram("holdfast-ckpt");
  for (char** entry = environ; InStep() && *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (IsNodeEnvironment(std::string_view(text).substr(0, text.find('='))))
      options->environment.push_back(text);
  }
  options->uid = ::geteuid();
  options->gid = ::getegid();
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> TakeStateDirectory(NodeOptions* options) {
  // Ranks of other users reach their keeper's socket through these: they may pass, not list.
  HF_RETURN_IF_ERROR(MakeDirectories(options->state_dir, 0));
  HF_RETURN_IF_ERROR(MakeDirectories(options->KeepersDir(), 0711));
  HF_RETURN_IF_ERROR(MakeDirectories(options->jobs_dir, 0));
  HF_RETURN_IF_ERROR(ProbeDirectory(options->state_dir));
  const std::string path = JoinPath(options->state_dir, "lock");
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  const bool taken = ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  const std::string holder = ReadSmallFile(path, 64).value_or("");
  if (!taken) {
    return absl::AlreadyExistsError(absl::StrCat(
        "state directory ", options->state_dir, " is used by another agent (process ",
        holder.empty() ? "unknown" : holder, "); stop that one or choose another --state"));
  }
  options->predecessor_stopped = holder.empty() || holder == kStopped;
  HF_RETURN_IF_ERROR(WriteLock(lock, std::to_string(::getpid())));
  return lock;
}

void MarkStopped(const UniqueFd& lock) {
  const absl::Status written = WriteLock(lock, kStopped);
  if (!written.ok()) spdlog::warn("cannot leave word of an orderly stop: {}", written.ToString());
}

}  // namespace holdfast::agent
