// SPDX-License-Identifier: Apache-2.0
// holdfast-scheduler: one a cluster. Parse, start, wait for a signal, stop.
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/sd_notify.h"
#include "base/step.h"
#include "proto/modes.h"
#include "scheduler/daemon.h"

namespace {

constexpr int kExitUsage = 2;
constexpr int kExitRefused = 4;
constexpr int kExitFailed = 1;
constexpr int64_t kLookMs = 200;

// A second signal while stopping: at once.
void ExitNow(int) { ::_exit(kExitFailed); }

// Returns the signal that asks for the end. Feeds the watchdog, but only while the scheduler's loop
// turns.
int WaitForSignal(const sigset_t& signals, const holdfast::sched::Daemon& daemon) {
  const int64_t watchdog_ms = holdfast::WatchdogIntervalMs();
  const timespec look = {
      0, (watchdog_ms > 0 ? std::min(watchdog_ms, kLookMs) : kLookMs) * holdfast::kNsPerMs};
  uint64_t seen = daemon.Progress();
  while (true) {
    const int signal = ::sigtimedwait(&signals, nullptr, &look);
    if (signal > 0) return signal;
    if (watchdog_ms > 0 && daemon.Progress() != seen) holdfast::SdNotify("WATCHDOG=1");
    seen = daemon.Progress();
  }
}

}  // namespace

int main(int argc, char** argv) {
  holdfast::sched::DaemonOptions options;
  CLI::App app{
      "Holdfast's scheduler: queue, placement, attempts, recovery, commits. Serves on "
      "unix:<state>/scheduler.sock."};
  app.add_option("--state", options.state_dir, "State directory")->required();
  app.add_option("--store", options.store_dir,
                 "Checkpoint store of jobs that name none (default: <state>/store)");
  app.add_option("--listen", options.listen, "HOST:PORT to serve on besides the Unix socket");
  app.add_flag("--insecure", options.insecure,
               "Allow --listen beyond loopback, without encryption");
  app.add_option("--key-file", options.key_file,
                 "File of mode 0600 with a key that every caller over TCP must hold");
  std::string modes;
  app.add_option("--modes", modes,
                 "What is done about ranks that hang or are stopped, in jobs that say nothing: "
                 "observe, act, or by cause as in hang=act,stopped=observe (default "
                 "hang=observe,stopped=act)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("scheduler"));
  if (!modes.empty()) {
    auto parsed = holdfast::proto::ParseModes(modes);
    if (!parsed.ok()) {
      spdlog::error("--modes: {}", std::string(parsed.status().message()));
      return kExitUsage;
    }
    options.modes = *std::move(parsed);
  }

  // Before any thread starts, so that all inherit the mask and only main takes these signals.
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = holdfast::DaemonStopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const holdfast::SystemClock clock;
  auto daemon = holdfast::sched::Daemon::Start(options, &clock);
  if (!daemon.ok()) {
    spdlog::error("{}", std::string(daemon.status().message()));
    if (daemon.status().code() == absl::StatusCode::kAlreadyExists) return kExitRefused;
    return daemon.status().code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed;
  }
  spdlog::info("serving on unix:{}", (*daemon)->socket());
  holdfast::SdNotify("READY=1\nSTATUS=serving");

  const int signal = WaitForSignal(signals, **daemon);
  spdlog::info("stopping on signal {}", signal);
  holdfast::SdNotify("STOPPING=1");
  struct sigaction now = {};
  now.sa_handler = ExitNow;
  for (const int again : {SIGTERM, SIGINT, SIGQUIT}) {
    if (::sigismember(&signals, again) == 1) ::sigaction(again, &now, nullptr);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*daemon)->Stop();
  return 0;
}
