// SPDX-License-Identifier: Apache-2.0
#include "agent/core/rank_fsm.h"

#include <sys/wait.h>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {

int32_t ExitCodeFromWait(uint64_t wait_status) {
  const auto code = static_cast<int32_t>(wait_status >> 32);
  const auto status = static_cast<int32_t>(wait_status & 0xffffffffu);
  return code == CLD_EXITED ? status : -status;
}

int64_t RankFsm::PendingStopAtNs() const {
  if (phase_ != RankPhase::kRunning) return 0;
  int64_t since = signal_stop_ns_ != 0 ? signal_stop_ns_ : frozen_ns_;
  if (signal_stop_ns_ != 0 && frozen_ns_ != 0 && frozen_ns_ < since) since = frozen_ns_;
  return since == 0 ? 0 : since + kStoppedRankGraceMs * kNsPerMs;
}

std::vector<RankEdge> RankFsm::Started(int64_t now_ns) {
  if (phase_ != RankPhase::kNone) return {};
  phase_ = RankPhase::kRunning;
  return {{RankEdge::kStarted, now_ns}};
}

std::vector<RankEdge> RankFsm::StartFailed(int64_t now_ns) {
  if (phase_ == RankPhase::kExited || phase_ == RankPhase::kStartFailed) return {};
  phase_ = RankPhase::kStartFailed;
  exit_ns_ = now_ns;
  return {{RankEdge::kStartFailed, now_ns}};
}

std::vector<RankEdge> RankFsm::Stopped(int64_t at_ns) {
  if (Alive() && signal_stop_ns_ == 0) signal_stop_ns_ = at_ns;
  return {};
}

std::vector<RankEdge> RankFsm::Continued(int64_t at_ns) {
  signal_stop_ns_ = 0;
  return Resumed(at_ns);
}

std::vector<RankEdge> RankFsm::Resumed(int64_t at_ns) {
  if (phase_ != RankPhase::kStopped || signal_stop_ns_ != 0 || frozen_ns_ != 0) return {};
  phase_ = RankPhase::kRunning;
  cause_ = StopCause::kNone;
  return {{RankEdge::kContinued, at_ns}};
}

std::vector<RankEdge> RankFsm::Exited(uint64_t wait_status, int64_t at_ns) {
  if (phase_ == RankPhase::kExited || phase_ == RankPhase::kStartFailed) return {};
  phase_ = RankPhase::kExited;
  cause_ = StopCause::kNone;
  exit_code_ = ExitCodeFromWait(wait_status);
  exit_ns_ = at_ns;
  return {{RankEdge::kExited, at_ns}};
}

std::vector<RankEdge> RankFsm::FrozenSeen(bool frozen, int64_t now_ns) {
  if (!Alive()) return {};
  if (frozen) {
    if (frozen_ns_ == 0) frozen_ns_ = now_ns;
    return {};
  }
  frozen_ns_ = 0;
  return Resumed(now_ns);
}

std::vector<RankEdge> RankFsm::Tick(int64_t now_ns, bool traced) {
  const int64_t due = PendingStopAtNs();
  if (due == 0 || now_ns < due || traced) return {};
  phase_ = RankPhase::kStopped;
  cause_ = frozen_ns_ != 0 ? StopCause::kFrozen : StopCause::kSignal;
  return {{RankEdge::kStopped, due - kStoppedRankGraceMs * kNsPerMs}};
}

}  // namespace holdfast::agent
