// SPDX-License-Identifier: Apache-2.0
#include "cli/up/own_cluster.h"

#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/output.h"
#include "cli/up/keepers.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kLookMs = 250;
// Below it the scheduler writes nothing more; told again once kStateFreeBytesMin was free.
constexpr uint64_t kFullBytes = 4ull << 20;
constexpr int64_t kStartAgainFirstMs = 100;  // doubled each time, see kStartAgainMsMax
constexpr int64_t kStartAgainMsMax = 5'000;
constexpr int kStartsAgainMax = 8;           // without kSteadyMs between them
constexpr int64_t kSteadyMs = 60'000;        // one that ran so long is no part of a series
constexpr int64_t kEndMsMax = 90'000;        // of an orderly end: cancelling, then three daemons
constexpr int64_t kEndNoJobsMsMax = 20'000;  // the daemons alone

}  // namespace

OwnCluster::OwnCluster(Background background, std::string state)
    : state_(std::move(state)),
      background_(std::move(background)),
      started_ns_(SystemClock().MonoNs()) {}

absl::StatusOr<std::unique_ptr<OwnCluster>> OwnCluster::Start(const OwnStateDir& state) {
  const RunDir run_dir(state.path());
  UpOptions options;
  options.owned = true;
  HF_ASSIGN_OR_RETURN(PreparedUp up, PrepareUp(run_dir, options));
  Ownership ownership;
  HF_ASSIGN_OR_RETURN(ownership, MakeOwnership());
  ownership.remove_state = state.temporary();
  HF_ASSIGN_OR_RETURN(
      Background background,
      StartInBackground(run_dir, std::move(up), options.nodes, std::move(ownership)));
  return std::unique_ptr<OwnCluster>(new OwnCluster(std::move(background), state.path()));
}

OwnCluster::~OwnCluster() { End(/*cancel=*/true); }

void OwnCluster::Watch(std::function<void()> on_given_up) {
  on_given_up_ = std::move(on_given_up);
  thread_ = std::thread([this] { Run(); });
}

absl::Status OwnCluster::GivenUp() const {
  const MutexLock lock(mutex_);
  return given_up_;
}

void OwnCluster::Run() {
  while (LookAfter() && !stop_.WaitMs(kLookMs)) LookForRoom();
}

void OwnCluster::LookForRoom() {
  struct statvfs info {};
  if (::statvfs(state_.c_str(), &info) != 0) return;
  const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
  if (free_bytes > kStateFreeBytesMin) full_told_ = false;
  if (free_bytes >= kFullBytes || std::exchange(full_told_, true)) return;
  Hint(absl::StrCat(
      "holdfast: no room in ", state_, ": ", free_bytes >> 10,
      " KiB are free. Ranks go on, but their output is cut and neither their end nor a "
      "restart can be recorded; make room, or end the run with Ctrl-C"));
}

bool OwnCluster::LookAfter() {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(background_.pid), &info,
               WEXITED | WSTOPPED | WCONTINUED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    // Stopped, and nobody has continued it for a look's length.
    if (std::exchange(was_stopped_, false)) ::kill(background_.pid, SIGCONT);
    return true;
  }
  was_stopped_ = info.si_code == CLD_STOPPED || info.si_code == CLD_TRAPPED;
  if (was_stopped_ || info.si_code == CLD_CONTINUED) return true;
  background_.pid = 0;
  const int code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
  Hint(absl::StrCat("holdfast: the supervisor of this run ", HowItEnded(code),
                    "; it is started again, ranks go on"));
  return StartAgain();
}

bool OwnCluster::StartAgain() {
  const SystemClock clock;
  if (clock.MonoNs() - started_ns_ > kSteadyMs * kNsPerMs) restarts_ = 0;
  const RunDir run_dir(state_);
  while (restarts_ < kStartsAgainMax) {
    if (stop_.WaitMs(std::min(kStartAgainMsMax, kStartAgainFirstMs << restarts_))) return false;
    ++restarts_;
    auto pid = RestartInBackground(run_dir, background_.ownership);
    if (!pid.ok()) {
      Hint(absl::StrCat("holdfast: ", pid.status().message()));
      continue;
    }
    background_.pid = *pid;
    started_ns_ = clock.MonoNs();
    return true;
  }
  GiveUp(
      absl::UnavailableError(absl::StrCat("the supervisor of this run ended ", kStartsAgainMax + 1,
                                          " times in a row: ", run_dir.LogTail("up", 3))));
  return false;
}

void OwnCluster::GiveUp(absl::Status why) {
  {
    const MutexLock lock(mutex_);
    given_up_ = std::move(why);
  }
  if (on_given_up_) on_given_up_();
}

void OwnCluster::End(bool cancel) {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
  if (background_.pid > 0) {
    // TERM leaves jobs running: those are the keepers killed below.
    EndBackground(std::exchange(background_.pid, 0), cancel ? SIGINT : SIGTERM,
                  cancel ? kEndMsMax : kEndNoJobsMsMax);
  }
  // One that was killed took its daemons with it, but not what outlives daemons by design.
  KillKeepers(state_, nullptr);
}

}  // namespace holdfast::cli
