// SPDX-License-Identifier: Apache-2.0
#include "base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

extern char** environ;

namespace holdfast {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& argv) {
  std::vector<char*> out;
  for (const std::string& arg : argv) out.push_back(const_cast<char*>(arg.c_str()));
  out.push_back(nullptr);
  return out;
}

// A file that holds `text` and is read from its start.
absl::StatusOr<UniqueFd> FileOf(const std::string& text) {
  UniqueFd fd(::memfd_create("holdfast-input", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(fd.get(), 0, SEEK_SET) != 0)
    return ErrnoStatus(errno, "write the input of a program");
  return fd;
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const ProgramOptions& options,
                            int output_fd, int error_fd) {
  HF_ASSIGN_OR_RETURN(const UniqueFd input, FileOf(options.input));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  if (output_fd >= 0) {
    ::posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  ::posix_spawn_file_actions_adddup2(&actions, error_fd, STDERR_FILENO);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);  // ours may hold back an interrupt
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  char* const* environment = environ;
  const std::vector<char*> given = Pointers(options.environment);
  if (!options.environment.empty()) environment = given.data();
  const int error = ::posix_spawn(&pid, argv[0].c_str(), &actions, &attributes,
                                  Pointers(argv).data(), environment);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", argv[0]));
  return pid;
}

// Reads until end of file or the deadline; true at end of file.
bool Drain(int fd, int64_t end_ns, std::string* out) {
  const SystemClock clock;
  while (true) {
    const int64_t left_ms = (end_ns - clock.MonoNs()) / kNsPerMs;
    if (left_ms <= 0) return false;
    pollfd p{fd, POLLIN, 0};
    const int ready = ::poll(&p, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    out->append(buffer, std::min<size_t>(
                            static_cast<size_t>(n),
                            kErrorOutputBytesMax - std::min(kErrorOutputBytesMax, out->size())));
  }
}

// The first `bytes_max` of a file.
std::string Head(int fd, size_t bytes_max) {
  std::string text(bytes_max, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& argv,
                                         const ProgramOptions& options) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  UniqueFd output;
  if (options.output_bytes_max > 0) {
    HF_ASSIGN_OR_RETURN(output, FileOf(""));
  }
  auto pid = Spawn(argv, options, output.get(), writer.get());
  if (!pid.ok()) return pid.status();
  writer.Reset();
  ProgramResult result;
  const bool ended = Drain(reader.get(), SystemClock().MonoNs() + options.deadline_ms * kNsPerMs,
                           &result.error_output);
  if (!ended) ::kill(-*pid, SIGKILL);
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended)
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not end within ", options.deadline_ms / 1000, " s"));
  if (output.valid()) result.output = Head(output.get(), options.output_bytes_max);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

absl::Status BecomeProgram(const std::vector<std::string>& argv) {
  ::execv(argv[0].c_str(), Pointers(argv).data());
  return ErrnoStatus(errno, absl::StrCat("cannot start ", argv[0]));
}

}  // namespace holdfast
