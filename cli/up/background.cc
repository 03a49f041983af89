// SPDX-License-Identifier: Apache-2.0
#include "cli/up/background.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/up/keepers.h"
#include "cli/up/own_state_dir.h"
#include "cli/up/spawn.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kHealthMs =
    60'000;  // from READY of all daemons to all nodes seen by the scheduler
constexpr int64_t kLookAgainMs = 200;
constexpr size_t kReportBytesMax = 64 << 10;
constexpr int64_t kReportMs = 120'000;  // until all daemons are ready, or one has given up
constexpr int kStopLookMs = 1'000;
constexpr int64_t kGivenUpMs = 20'000;  // for a supervisor to end its daemons

void SayWithTime(const std::string& text) {
  Hint(absl::StrCat(Rfc3339(SystemClock().WallNs()), " ", text));
}

void ReportReady(UniqueFd* report) {
  SayWithTime("all is ready");
  if (!report->valid()) return;
  const ssize_t written = ::write(report->get(), "0\n", 2);
  (void)written;  // a caller that went away does not matter any more
  report->Reset();
}

bool OwnerIsGone(const Ownership& ownership) {
  pollfd gone{ownership.watched.get(), 0, 0};
  return ownership.watched.valid() && ::poll(&gone, 1, 0) > 0;
}

// The daemonised child: output to up.log, its success or failure told to the caller once by
// `report`.
[[noreturn]] void BeTheDaemon(const RunDir& run_dir, SupervisorConfig config, UniqueFd report,
                              Ownership ownership) {
  ownership.owner.Reset();
  config.caller_fd = ownership.watched.get();
  auto log = run_dir.OpenLog("up");
  const UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null_fd.get(), STDIN_FILENO);
  const int output = log.ok() ? log->get() : null_fd.get();
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  if (::chdir("/") != 0) ::_exit(kExitRefused);
  // The caller waits for the end of this pipe: what comes before it is an error, nothing means
  // ready.
  config.say = [](const std::string& text) { SayWithTime(text); };
  config.alive_fd = report.get();
  config.on_ready = [&report] { ReportReady(&report); };
  absl::Status failure;
  const int code = RunSupervisor(run_dir, std::move(config), &failure);
  if (!failure.ok()) SayWithTime(std::string(failure.message()));
  if (OwnerIsGone(ownership)) {
    KillKeepers(run_dir.state(), nullptr);
    if (ownership.remove_state) RemoveStateDir(run_dir.state());
  }
  if (report.valid()) {
    // Ended in order, but not up: to the caller, who waits for that, it is a failure all the same.
    const int reported = code == kExitDone ? static_cast<int>(kExitRefused) : code;
    const std::string text = absl::StrCat(
        reported, "\n", failure.ok() ? "ended before all was ready" : failure.message());
    const ssize_t written = ::write(report.get(), text.data(), text.size());
    (void)written;
  }
  ::_exit(code);
}

// A supervisor that somebody stopped by mistake would be waited for in vain.
void ContinueIfStopped(pid_t pid) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG) == 0 && info.si_pid == pid)
    ::kill(pid, SIGCONT);
}

absl::Status StatusOfExit(int code, const std::string& text) {
  switch (code) {
    case kExitDone:
      return absl::OkStatus();
    case kExitUsage:
      return absl::InvalidArgumentError(text);
    case kExitNotFound:
      return absl::NotFoundError(text);
    case kExitUnreachable:
      return absl::UnavailableError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

// What the daemon reported: ready, or its error.
absl::Status ReadReport(int fd, pid_t pid) {
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + kReportMs * kNsPerMs;
  std::string text;
  char buffer[4096];
  while (text.size() < kReportBytesMax) {
    if (clock.MonoNs() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat("Holdfast's daemons are not ready after ", kReportMs / 1000, " s"));
    }
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, kStopLookMs) == 0) {
      ContinueIfStopped(pid);
      continue;
    }
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  const size_t line = text.find('\n');
  if (line == std::string::npos)
    return absl::FailedPreconditionError("ended before all was ready, without a word");
  return StatusOfExit(std::atoi(text.substr(0, line).c_str()), text.substr(line + 1));
}

bool AllNodesReady(const v1::ListNodesResponse& nodes, int wanted) {
  for (int i = 0; i < wanted; ++i) {
    const std::string name = absl::StrCat("n", i);
    const bool ready =
        std::any_of(nodes.nodes().begin(), nodes.nodes().end(), [&](const v1::NodeStatus& n) {
          return n.name() == name && n.state() != v1::NODE_STATE_LOST &&
                 n.state() != v1::NODE_STATE_UNSPECIFIED;
        });
    if (!ready) return false;
  }
  return true;
}

// READY=1 is the daemons' own word; this is a caller's view: the socket answers and every node is
// known.
absl::Status WaitUntilHealthy(const RunDir& run_dir, int nodes) {
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + kHealthMs * kNsPerMs;
  SchedulerClient client(absl::StrCat("unix:", run_dir.state(), "/scheduler.sock"),
                         kConnectMsDefault);
  uint64_t sequence = 0;
  absl::Status last = absl::UnavailableError("not all nodes have registered");
  while (clock.MonoNs() < end) {
    auto known =
        client.Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest());
    if (known.ok() && AllNodesReady(*known, nodes)) return absl::OkStatus();
    if (!known.ok()) last = known.status();
    // A node that registers makes an event; a scheduler without any is asked again soon.
    const absl::Status stream =
        WaitForEvent(&client, nullptr, "", "node.", kLookAgainMs, &sequence);
    if (!stream.ok() && IsBroken(stream))
      IgnoreError(client.Connect(kLookAgainMs), "the next call reports it");
  }
  return Annotate(last, absl::StrCat("up, but not healthy after ", kHealthMs / 1000, " s (see ",
                                     run_dir.state(), "/run/*.log)"));
}

}  // namespace

int RunSupervisor(const RunDir& run_dir, SupervisorConfig config, absl::Status* failure) {
  Supervisor supervisor(&run_dir, std::move(config));
  *failure = run_dir.WritePid("up", ::getpid());
  if (failure->ok()) *failure = supervisor.Run();
  run_dir.RemovePid("up");
  return failure->ok()                 ? kExitDone
         : supervisor.exit_code() != 0 ? supervisor.exit_code()
                                       : ExitCodeOf(*failure);
}

absl::StatusOr<PreparedUp> PrepareUp(const RunDir& run_dir, const UpOptions& options) {
  PreparedUp up;
  HF_RETURN_IF_ERROR(run_dir.Prepare(options.nodes));
  HF_ASSIGN_OR_RETURN(up.lock, run_dir.Lock());
  HF_RETURN_IF_ERROR(run_dir.CheckNothingIsHeld());
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> notes, WriteDevices(run_dir.state(), options));
  for (const std::string& note : notes) Hint(absl::StrCat("holdfast: ", note));
  HF_ASSIGN_OR_RETURN(up.config.daemons, DaemonsOf(run_dir.state(), options));
  up.config.cancel_argv = {"/proc/self/exe", "down", "--jobs-only", "--state", run_dir.state()};
  return up;
}

absl::StatusOr<Ownership> MakeOwnership() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  Ownership out;
  out.watched = UniqueFd(fds[0]);
  out.owner = UniqueFd(fds[1]);
  return out;
}

absl::StatusOr<Background> ForkSupervisor(const RunDir& run_dir, PreparedUp up, Ownership ownership,
                                          bool own_session) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  Background out;
  out.ownership = std::move(ownership);
  out.pid = ::fork();
  if (out.pid < 0) return ErrnoStatus(errno, "fork");
  if (out.pid == 0) {
    reader.Reset();
    if (own_session) ::setsid();
    BeTheDaemon(run_dir, std::move(up.config), std::move(writer), std::move(out.ownership));
  }
  writer.Reset();
  up.lock.Reset();  // the child's copy keeps it held
  if (const absl::Status ready = ReadReport(reader.get(), out.pid); !ready.ok()) {
    out.ownership.owner.Reset();  // ends it where no signal does
    EndBackground(out.pid, SIGTERM, kGivenUpMs);
    return ready;
  }
  return out;
}

absl::StatusOr<Background> StartInBackground(const RunDir& run_dir, PreparedUp up, int nodes,
                                             Ownership ownership) {
  auto started = ForkSupervisor(run_dir, std::move(up), std::move(ownership), /*own_session=*/true);
  if (!started.ok()) return Annotate(started.status(), "up");
  if (const absl::Status healthy = WaitUntilHealthy(run_dir, nodes); !healthy.ok()) {
    EndBackground(started->pid, SIGTERM, kGivenUpMs);
    return healthy;
  }
  return started;
}

absl::StatusOr<pid_t> RestartInBackground(const RunDir& run_dir, const Ownership& ownership) {
  SpawnRequest request;
  request.argv = {"/proc/self/exe", "up",         "--state",
                  run_dir.state(),  "--owner-fd", absl::StrCat(kInheritedFd)};
  if (ownership.remove_state) request.argv.push_back("--owner-removes-state");
  request.environment = EnvironmentWith({"HOLDFAST_STATE", "HOLDFAST_ENDPOINT"}, {});
  request.inherited_fd = ownership.watched.get();
  request.dies_with_caller = false;  // the pipe tells it
  const auto log = run_dir.OpenLog("up");
  if (log.ok()) request.output_fd = log->get();
  return SpawnChild(request);
}

void BeOwned(const RunDir& run_dir, PreparedUp up, Ownership ownership) {
  ::fcntl(ownership.watched.get(), F_SETFD, FD_CLOEXEC);
  ::setsid();
  BeTheDaemon(run_dir, std::move(up.config), UniqueFd(), std::move(ownership));
}

void EndBackground(pid_t pid, int signal, int64_t wait_ms) {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + wait_ms * kNsPerMs;
  ::kill(pid, signal);
  pollfd gone{fd.get(), POLLIN, 0};
  do {
    ::kill(pid, SIGCONT);
  } while (fd.valid() && ::poll(&gone, 1, kStopLookMs) == 0 && clock.MonoNs() < end);
  ::kill(pid, SIGKILL);  // nothing when it has ended
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace holdfast::cli
