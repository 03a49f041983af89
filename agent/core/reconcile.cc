// SPDX-License-Identifier: Apache-2.0
#include "agent/core/reconcile.h"

#include "absl/strings/str_cat.h"

namespace holdfast::agent {
namespace {

Action Make(Action::Kind kind, const WantedJob& wanted, std::string reason) {
  return {kind, wanted.job, wanted.attempt, StopKind::kNone, 0, std::move(reason)};
}

bool Busy(const ObservedJob& observed) { return observed.ranks_alive > 0 || observed.starting; }

// Something of the job lives: stop it. True when nothing is left.
bool StopAll(const WantedJob& wanted, const ObservedJob& observed, StopKind kind, const char* why,
             std::vector<Action>* actions) {
  if (Busy(observed)) {
    Action action = Make(Action::kStopRanks, wanted, why);
    action.stop = kind;
    action.grace_ns = wanted.grace_ns;
    actions->push_back(std::move(action));
    return false;
  }
  if (observed.left_behind) {
    actions->push_back(Make(Action::kKillLeftBehind, wanted, "processes outlived their rank"));
    return false;
  }
  return true;
}

void Run(const WantedJob& wanted, const ObservedJob& observed, int64_t now_ns,
         std::vector<Action>* actions) {
  if (wanted.local_ranks == 0 || observed.started_attempt >= wanted.attempt) return;
  if (!StopAll(wanted, observed, StopKind::kKill, "ranks of an older attempt run", actions)) return;
  if (observed.keeper_busy || (observed.keeper_attached && wanted.waits_for_master)) return;
  if (!observed.keeper_attached) {
    if (now_ns >= observed.keeper_retry_ns)
      actions->push_back(Make(Action::kStartKeeper, wanted, "no keeper"));
    return;
  }
  actions->push_back(
      Make(Action::kStartRanks, wanted, absl::StrCat("attempt ", wanted.attempt, " is wanted")));
}

void Stop(const WantedJob& wanted, const ObservedJob& observed, std::vector<Action>* actions) {
  if (observed.keeper_busy) return;
  if (!StopAll(wanted, observed, wanted.stop, "the scheduler orders a stop", actions)) return;
  if (observed.stop_reported < wanted.attempt) {
    actions->push_back(Make(Action::kReportStopped, wanted, "nothing of the job is left here"));
  }
}

void Forget(const WantedJob& wanted, const ObservedJob& observed, std::vector<Action>* actions) {
  if (!observed.known || observed.keeper_busy) return;
  if (!StopAll(wanted, observed, StopKind::kKill, "the scheduler forgets the job", actions)) return;
  actions->push_back(Make(Action::kForget, wanted, "the scheduler forgets the job"));
}

}  // namespace

std::vector<Action> Reconcile(const WantedJob& wanted, const ObservedJob& observed,
                              int64_t now_ns) {
  std::vector<Action> actions;
  // An order for an attempt older than one already seen is late: it must not stop or start anything
  // of the newer one.
  if (wanted.attempt < observed.fence_attempt && wanted.phase != WantedJob::kForget) return actions;
  if (wanted.attempt > observed.fence_attempt) {
    actions.push_back(Make(Action::kRaiseFence, wanted, "a newer attempt exists"));
  }
  switch (wanted.phase) {
    case WantedJob::kRun:
      Run(wanted, observed, now_ns, &actions);
      break;
    case WantedJob::kStop:
      Stop(wanted, observed, &actions);
      break;
    case WantedJob::kForget:
      Forget(wanted, observed, &actions);
      break;
  }
  return actions;
}

}  // namespace holdfast::agent
