// SPDX-License-Identifier: Apache-2.0
#include "cli/up/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
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
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kHealthMs =
    60'000;  // from READY of all daemons to all nodes seen by the scheduler
constexpr int64_t kLookAgainMs = 200;
constexpr size_t kReportBytesMax = 64 << 10;

void SayWithTime(const std::string& text) {
  Hint(absl::StrCat(Rfc3339(SystemClock().WallNs()), " ", text));
}

// The daemonised child: a session of its own, output to up.log, its success or failure told to the
// caller once by `report`.
[[noreturn]] void BeTheDaemon(const RunDir& run_dir, SupervisorConfig config, UniqueFd report,
                              UniqueFd owner) {
  config.caller_fd = owner.get();
  ::setsid();
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
  config.on_ready = [&report] {
    SayWithTime("all is ready");
    const ssize_t written = ::write(report.get(), "0\n", 2);
    (void)written;  // a caller that went away does not matter any more
    report.Reset();
  };
  absl::Status failure;
  const int code = RunSupervisor(run_dir, std::move(config), &failure);
  if (!failure.ok()) SayWithTime(std::string(failure.message()));
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

// What the daemon reported: its exit code and its error.
std::pair<int, std::string> ReadReport(int fd) {
  std::string text;
  char buffer[4096];
  while (text.size() < kReportBytesMax) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  const size_t line = text.find('\n');
  if (line == std::string::npos)
    return {kExitRefused, "ended before all was ready, without a word"};
  return {std::atoi(text.substr(0, line).c_str()), text.substr(line + 1)};
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

absl::Status StatusOfExit(int code, const std::string& text) {
  switch (code) {
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

absl::StatusOr<Background> StartInBackground(const RunDir& run_dir, PreparedUp up, int nodes,
                                             bool ends_with_caller) {
  int fds[2], owner[2] = {-1, -1};
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  if (ends_with_caller && ::pipe2(owner, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd owner_ends(owner[0]);
  Background out;
  out.owner = UniqueFd(owner[1]);
  out.pid = ::fork();
  if (out.pid < 0) return ErrnoStatus(errno, "fork");
  if (out.pid == 0) {
    reader.Reset();
    out.owner.Reset();
    BeTheDaemon(run_dir, std::move(up.config), std::move(writer), std::move(owner_ends));
  }
  writer.Reset();
  up.lock.Reset();  // the child's copy keeps it held
  const auto [code, error] = ReadReport(reader.get());
  if (code != 0) {
    ::waitpid(out.pid, nullptr, 0);
    return Annotate(StatusOfExit(code, error), "up");
  }
  if (const absl::Status healthy = WaitUntilHealthy(run_dir, nodes); !healthy.ok()) {
    ::kill(out.pid, SIGTERM);
    ::waitpid(out.pid, nullptr, 0);
    return healthy;
  }
  return out;
}

}  // namespace holdfast::cli
