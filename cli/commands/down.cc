// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/up/keepers.h"
#include "cli/up/run_dir.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kCancelMs = 30'000;  // TERM, 10 s, KILL, and the way there
constexpr int64_t kIdleKeepersGoneMs = 2'000;
constexpr int64_t kUpGoneMs = 20'000;  // two times TERM, 5 s, KILL, with room

struct DownOptions {
  bool leave_ranks = false;
  bool jobs_only = false;  // hidden: what `up` runs on Ctrl-C
};

std::vector<std::string> Ids(const v1::ListJobsResponse& jobs) {
  std::vector<std::string> ids;
  for (const v1::JobStatus& job : jobs.jobs()) {
    if (!IsEnded(job)) ids.push_back(ToString(JobId{job.id()}));
  }
  return ids;
}

absl::StatusOr<std::vector<std::string>> LiveJobs(SchedulerClient* client) {
  auto jobs = client->Call("list the jobs", &v1::Scheduler::Stub::ListJobs, v1::ListJobsRequest());
  if (!jobs.ok()) return jobs.status();
  return Ids(*jobs);
}

// Cancels what lives and waits for its end. The ids that were cancelled; an error names what is
// still alive.
absl::StatusOr<std::vector<std::string>> CancelLiveJobs(SchedulerClient* client,
                                                        InterruptGuard* guard) {
  const int64_t end_ns = SystemClock().MonoNs() + kCancelMs * kNsPerMs;
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, LiveJobs(client));
  if (jobs.empty()) return jobs;
  Hint(absl::StrCat("cancelling ", absl::StrJoin(jobs, ", "), " (at most ", kCancelMs / 1000,
                    " s)"));
  for (const std::string& id : jobs) {
    const auto cancelled = CancelJob(client, id);
    // One that ended by itself in the meantime is refused; the wait below tells.
    if (!cancelled.ok() && ExitCodeOf(cancelled.status()) == kExitUnreachable)
      return cancelled.status();
  }
  for (const std::string& id : jobs) {
    auto ended = WaitForEnd(client, guard, id, end_ns);
    if (!ended.ok()) return ended.status();
  }
  return jobs;
}

void TellKilling(const KeeperProcess& keeper) {
  Hint(absl::StrCat("killing keeper ", keeper.pid, " (", keeper.directory, ") and its ranks"));
}

absl::Status EndUp(const RunDir& run_dir, pid_t pid) {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid())
    return errno == ESRCH ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("pidfd_open ", pid));
  // The descriptor is of whoever has the pid now; the lock says that it is still up.
  HF_ASSIGN_OR_RETURN(const pid_t still, run_dir.RunningUp());
  if (still != pid) return absl::OkStatus();
  if (::syscall(SYS_pidfd_send_signal, fd.get(), SIGTERM, nullptr, 0) != 0 && errno != ESRCH) {
    return ErrnoStatus(errno, absl::StrCat("cannot end up (pid ", pid, ")"));
  }
  pollfd gone{fd.get(), POLLIN, 0};
  if (::poll(&gone, 1, static_cast<int>(kUpGoneMs)) > 0) return absl::OkStatus();
  Hint(
      absl::StrCat("up (pid ", pid, ") did not end within ", kUpGoneMs / 1000, " s and is killed"));
  ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
  ::poll(&gone, 1, static_cast<int>(kUpGoneMs));
  return absl::OkStatus();
}

int JobsOnly(const std::string& state) {
  InterruptGuard guard;
  SchedulerClient client(absl::StrCat("unix:", state, "/scheduler.sock"), kConnectMsDefault);
  auto cancelled = CancelLiveJobs(&client, &guard);
  if (!cancelled.ok()) return Fail(cancelled.status());
  return WaitForKeepers(state, kKeepersGoneMs) ? kExitDone : kExitRefused;
}

int Report(const Invocation& invocation, const std::string& state, bool was_up,
           const std::vector<std::string>& cancelled, size_t killed) {
  const size_t left = LiveKeepers(state).size();
  if (invocation.json) {
    PrintLine(nlohmann::ordered_json{
        {"state", state},
        {"was_up", was_up},
        {"cancelled", cancelled},
        {"keepers_killed", killed},
        {"keepers_left",
         left}}.dump());
  }
  if (left > 0)
    Hint(absl::StrCat(left, " keepers and their ranks go on under ", state,
                      "; the next `holdfast up` adopts them"));
  Hint(was_up ? absl::StrCat("down: ", state) : absl::StrCat("nothing was up on ", state));
  return kExitDone;
}

int Down(const Invocation& invocation, const DownOptions& options) {
  auto state = StateDirectory(ReadSurroundings(invocation.state, ""));
  if (!state.ok()) return Fail(state.status());
  if (options.jobs_only) return JobsOnly(*state);
  const RunDir run_dir(*state);
  auto pid = run_dir.RunningUp();
  if (!pid.ok()) return Fail(pid.status());
  InterruptGuard guard;
  std::vector<std::string> cancelled;
  if (*pid != 0 && !options.leave_ranks) {
    SchedulerClient client(absl::StrCat("unix:", *state, "/scheduler.sock"), kConnectMsDefault);
    auto jobs = CancelLiveJobs(&client, &guard);
    if (guard.interrupted()) return Fail(jobs.status());
    if (jobs.ok()) cancelled = *jobs;
    if (!jobs.ok())
      Hint(absl::StrCat("holdfast: ", jobs.status().message(), "; their ranks are killed"));
    // Keepers end by themselves when their job has: one that ended a moment ago needs a little
    // time, too.
    if (jobs.ok()) WaitForKeepers(*state, cancelled.empty() ? kIdleKeepersGoneMs : kKeepersGoneMs);
  }
  if (*pid != 0) {
    if (const absl::Status ended = EndUp(run_dir, *pid); !ended.ok()) return Fail(ended);
  }
  const size_t killed = options.leave_ranks ? 0 : KillKeepers(*state, TellKilling);
  if (killed > 0 && *pid == 0)
    Hint(
        "their jobs were not cancelled (no scheduler) and start again with the next `holdfast up`");
  return Report(invocation, *state, *pid != 0, cancelled, killed);
}

}  // namespace

void AddDown(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "down", "Cancels the jobs and ends what `holdfast up` runs",
      "  holdfast down\n"
      "  holdfast down --leave-ranks      ranks train on; the next `holdfast up` adopts them\n");
  auto options = std::make_shared<DownOptions>();
  verb.Flag("--leave-ranks", &options->leave_ranks, "end the daemons only");
  verb.Flag("--jobs-only", &options->jobs_only, "");  // hidden: up's Ctrl-C
  verb.Then([=] { invocation->run = [=] { return Down(*invocation, *options); }; });
}

}  // namespace holdfast::cli
