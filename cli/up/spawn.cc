// SPDX-License-Identifier: Apache-2.0
#include "cli/up/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

extern char** environ;

namespace holdfast::cli {
namespace {

// When it has the number already, only the flag is to go.
bool Inherit(int fd) {
  if (fd < 0) return true;
  return fd == kInheritedFd ? ::fcntl(fd, F_SETFD, 0) == 0 : ::dup2(fd, kInheritedFd) >= 0;
}

// Between fork and exec: async-signal-safe calls only; everything else was made ready before.
[[noreturn]] void BeTheChild(char* const* argv, char* const* envp, const SpawnRequest& request,
                             int error_fd, pid_t parent) {
  // Out of the way of the number that the child expects.
  if (error_fd == kInheritedFd) error_fd = ::fcntl(error_fd, F_DUPFD_CLOEXEC, kInheritedFd + 1);
  const auto fail = [error_fd](int error) {
    const ssize_t ignored = ::write(error_fd, &error, sizeof error);
    (void)ignored;
    ::_exit(127);
  };
  if (request.dies_with_caller) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail(errno);
    if (::getppid() != parent) ::_exit(127);  // it died before the line above
  }
  ::setpgid(0, 0);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  if (null_fd < 0 || ::dup2(null_fd, STDIN_FILENO) < 0) fail(errno);
  if (null_fd > STDERR_FILENO) ::close(null_fd);
  const int output = request.output_fd;
  if (output >= 0 && (::dup2(output, STDOUT_FILENO) < 0 || ::dup2(output, STDERR_FILENO) < 0))
    fail(errno);
  if (!Inherit(request.inherited_fd)) fail(errno);
  ::execve(argv[0], argv, envp);
  fail(errno);
  ::_exit(127);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

absl::StatusOr<pid_t> SpawnChild(const SpawnRequest& request) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  const std::vector<char*> argv = Pointers(request.argv);
  const std::vector<char*> envp = Pointers(request.environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, absl::StrCat("cannot start ", request.argv[0]));
  if (pid == 0) BeTheChild(argv.data(), envp.data(), request, writer.get(), parent);
  writer.Reset();
  int error = 0;
  ssize_t n = 0;
  while ((n = ::read(reader.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (n != sizeof error) return pid;
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return ErrnoStatus(error, absl::StrCat("cannot start ", request.argv[0]));
}

std::vector<std::string> EnvironmentWith(const std::vector<std::string>& without,
                                         const std::vector<std::string>& with) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (std::find(without.begin(), without.end(), name) == without.end()) out.push_back(text);
  }
  out.insert(out.end(), with.begin(), with.end());
  return out;
}

}  // namespace holdfast::cli
