// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"
#include "cli/up/supervisor.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kHealthMs =
    60'000;  // from READY of all daemons to all nodes seen by the scheduler
constexpr int64_t kLookAgainMs = 200;
constexpr size_t kReportBytesMax = 64 << 10;

struct UpInvocation {
  UpOptions options;
  bool daemonise = false;
};

void SayWithTime(const std::string& text) {
  Hint(absl::StrCat(Rfc3339(SystemClock().WallNs()), " ", text));
}

absl::StatusOr<SupervisorConfig> MakeConfig(const RunDir& run_dir, const UpOptions& options) {
  SupervisorConfig config;
  HF_ASSIGN_OR_RETURN(config.daemons, DaemonsOf(run_dir.state(), options));
  config.cancel_argv = {"/proc/self/exe", "down", "--jobs-only", "--state", run_dir.state()};
  return config;
}

int RunSupervisor(const RunDir& run_dir, SupervisorConfig config, absl::Status* failure) {
  Supervisor supervisor(&run_dir, std::move(config));
  *failure = run_dir.WritePid("up", ::getpid());
  if (failure->ok()) *failure = supervisor.Run();
  run_dir.RemovePid("up");
  return failure->ok()                 ? kExitDone
         : supervisor.exit_code() != 0 ? supervisor.exit_code()
                                       : ExitCodeOf(*failure);
}

int Foreground(const RunDir& run_dir, SupervisorConfig config) {
  config.say = [](const std::string& text) { Hint(text); };
  config.hang_up_ends = true;
  config.on_ready = [&run_dir] {
    Hint(absl::StrCat("up: state ", run_dir.state(), ", scheduler unix:", run_dir.state(),
                      "/scheduler.sock"));
    Hint(
        "Ctrl-C cancels the jobs and ends everything; in another shell: holdfast submit -- "
        "hostname");
  };
  absl::Status failure;
  const int code = RunSupervisor(run_dir, std::move(config), &failure);
  if (!failure.ok()) {
    Fail(failure);
  } else {
    Hint("down");
  }
  return code;
}

// The daemonised child: a session of its own, output to up.log, its success or failure told to the
// caller once by `report`.
[[noreturn]] void BeTheDaemon(const RunDir& run_dir, SupervisorConfig config, UniqueFd report) {
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

int Daemonise(const RunDir& run_dir, SupervisorConfig config, UniqueFd lock,
              const UpOptions& options, bool json) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return Fail(ErrnoStatus(errno, "pipe"));
  UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return Fail(ErrnoStatus(errno, "fork"));
  if (pid == 0) {
    reader.Reset();
    BeTheDaemon(run_dir, std::move(config), std::move(writer));
  }
  writer.Reset();
  lock.Reset();  // the child's copy keeps it held
  const auto [code, error] = ReadReport(reader.get());
  if (code != 0) {
    Hint(absl::StrCat("holdfast: up: ", error));
    return code;
  }
  if (const absl::Status healthy = WaitUntilHealthy(run_dir, options.nodes); !healthy.ok()) {
    ::kill(pid, SIGTERM);
    return Fail(healthy);
  }
  if (json) {
    PrintLine(nlohmann::ordered_json{
        {"state", run_dir.state()},
        {"endpoint", absl::StrCat("unix:", run_dir.state(), "/scheduler.sock")},
        {"pid", pid},
        {"nodes", options.nodes}}
                  .dump());
  }
  Hint(absl::StrCat("up: pid ", pid, ", state ", run_dir.state(), "; `holdfast down", " --state ",
                    run_dir.state(), "` ends it"));
  return kExitDone;
}

int Up(const Invocation& invocation, UpInvocation up) {
  if (const absl::Status bad = CheckUpOptions(up.options); !bad.ok()) return Fail(bad);
  auto state = StateDirectory(ReadSurroundings(invocation.state, ""));
  if (!state.ok()) return Fail(state.status());
  if (!up.options.store.empty())
    up.options.store = AbsolutePath(up.options.store, WorkingDirectory());
  if (!up.options.bin_dir.empty())
    up.options.bin_dir = AbsolutePath(up.options.bin_dir, WorkingDirectory());
  const RunDir run_dir(*state);
  if (const absl::Status bad = run_dir.Prepare(up.options.nodes); !bad.ok()) return Fail(bad);
  auto lock = run_dir.Lock();
  if (!lock.ok()) return Fail(lock.status());
  if (const absl::Status held = run_dir.CheckNothingIsHeld(); !held.ok()) return Fail(held);
  auto notes = WriteDevices(*state, up.options);
  if (!notes.ok()) return Fail(notes.status());
  for (const std::string& note : *notes) Hint(absl::StrCat("holdfast: ", note));
  auto config = MakeConfig(run_dir, up.options);
  if (!config.ok()) return Fail(config.status());
  if (!up.daemonise) return Foreground(run_dir, *std::move(config));
  return Daemonise(run_dir, *std::move(config), *std::move(lock), up.options, invocation.json);
}

}  // namespace

void AddUp(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "up", "Runs a scheduler and agents on this machine and keeps them running",
      "  holdfast up -d                                             one node, no devices\n"
      "  holdfast up --nodes 2 --gpus-per-node 2 --simulate -d      a simulated cluster\n"
      "  holdfast up --simulate --state /tmp/hf                     in the foreground; Ctrl-C ends "
      "it\n"
      "What dies is started again after 100 ms; what stays stopped or silent for 1 s is killed "
      "first.\n"
      "Drills: while <state>/run/hold/<daemon> exists (agent-n0), that daemon is not started "
      "again.\n");
  auto up = std::make_shared<UpInvocation>();
  verb.Option("--nodes", &up->options.nodes, "how many (default 1)");
  verb.Option("--gpus-per-node", &up->options.gpus_per_node,
              "simulated devices of each node (default 0)");
  verb.Flag("--simulate", &up->options.simulate, "nodes and devices of a simulated cluster");
  verb.Option("--store", &up->options.store, "directory of checkpoints (default <state>/store)");
  verb.Flag("-d,--detach", &up->daemonise, "go to the background when all is ready");
  verb.Option("--bin-dir", &up->options.bin_dir, "");  // hidden: tests and packages
  verb.Then([=] { invocation->run = [=] { return Up(*invocation, *up); }; });
}

}  // namespace holdfast::cli
