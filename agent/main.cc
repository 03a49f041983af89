// SPDX-License-Identifier: Apache-2.0
// holdfast-agent: parse, lock, start, wait for a signal, stop in reverse. Signals are blocked
// before any thread exists and read from a descriptor here; the second one ends the process at
// once.
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "agent/options.h"
#include "base/sd_notify.h"
#include "base/step.h"

namespace {

using holdfast::agent::Agent;

constexpr int64_t kStopWaitNs = 1'000'000'000;  // a save that runs longer is left to the next agent

// Until a signal comes. Feeds the watchdog only while the main loop makes progress.
void WaitForSignal(int signals, const Agent& agent) {
  const int64_t watchdog_ms = holdfast::WatchdogIntervalMs();
  uint64_t seen = 0;
  while (true) {
    pollfd p{signals, POLLIN, 0};
    if (::poll(&p, 1, watchdog_ms > 0 ? static_cast<int>(watchdog_ms) : -1) > 0) break;
    const uint64_t now = agent.Progress();
    if (now != seen) holdfast::SdNotify("WATCHDOG=1");
    seen = now;
  }
  signalfd_siginfo info{};
  if (::read(signals, &info, sizeof info) > 0)
    spdlog::info("signal {}: stopping; keepers and ranks go on", info.ssi_signo);
}

int Refuse(const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  return holdfast::agent::kExitRefused;
}

}  // namespace

int main(int argc, char** argv) {
  holdfast::agent::NodeOptions options;
  int exit_code = 0;
  if (!holdfast::agent::ParseCommandLine(argc, argv, &options, &exit_code)) return exit_code;
  spdlog::set_default_logger(spdlog::stderr_logger_mt("agent-" + options.node));
  spdlog::flush_on(spdlog::level::info);

  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  const sigset_t stop_signals = holdfast::DaemonStopSignals();
  ::sigprocmask(SIG_BLOCK, &stop_signals, nullptr);
  const holdfast::UniqueFd signals(::signalfd(-1, &stop_signals, SFD_CLOEXEC));

  const absl::StatusOr<holdfast::UniqueFd> lock = holdfast::agent::TakeStateDirectory(&options);
  if (!lock.ok()) return Refuse(lock.status());
  auto agent = std::make_unique<Agent>(options);
  const absl::Status started = agent->Start();
  if (!started.ok()) return Refuse(started);
  spdlog::info("node {} serves at {}", options.node, options.address);
  holdfast::SdNotify(absl::StrCat("READY=1\nSTATUS=serving node ", options.node));

  WaitForSignal(signals.get(), *agent);
  holdfast::SdNotify("STOPPING=1");
  ::sigprocmask(SIG_UNBLOCK, &stop_signals, nullptr);  // the next one is not caught
  if (!agent->Stop(kStopWaitNs)) {
    spdlog::warn("a save is still being written; the next agent finds what was sealed");
    holdfast::agent::MarkStopped(*lock);
    ::_exit(0);
  }
  agent.reset();
  holdfast::agent::MarkStopped(*lock);
  return 0;
}
