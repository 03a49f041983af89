// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/node_liveness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace holdfast::sched {

LivenessVerdict JudgeLiveness(const LivenessInput& input, int64_t now_mono_ns) {
  LivenessVerdict verdict;
  const int64_t silent_ms = (now_mono_ns - input.last_beat_mono_ns) / kNsPerMs;
  if (silent_ms <= kSuspectAfterMs) return verdict;
  verdict.liveness = Liveness::kSuspect;
  verdict.ask_neighbours = true;
  verdict.reason = absl::StrCat("no beat for ", silent_ms, " ms");
  if (silent_ms < kNodeLeaseMs) return verdict;
  for (const auto& [neighbour, answer] : input.answers) {
    // An answer proves life for one lease from when it was given.
    const int64_t answer_age_ms = (now_mono_ns - answer.at_mono_ns) / kNsPerMs;
    const bool heard =
        answer.last_heard_age_ms >= 0 && answer.last_heard_age_ms + answer_age_ms < kNodeLeaseMs;
    if (answer.answered && ((answer.reachable && answer_age_ms < kNodeLeaseMs) || heard)) {
      absl::StrAppend(&verdict.reason, ", but ", neighbour, " hears it");
      return verdict;
    }
  }
  verdict.liveness = Liveness::kLost;
  verdict.ask_neighbours = false;
  absl::StrAppend(&verdict.reason, " (lease ", kNodeLeaseMs, " ms) and none of ", input.asked,
                  " neighbour(s) hears it");
  return verdict;
}

bool MassLossGuard::WouldHold(const std::string& node, uint32_t nodes_in_all,
                              int64_t now_mono_ns) const {
  uint32_t lost = lost_at_ns_.count(node) ? 0 : 1;
  for (const auto& [name, at_ns] : lost_at_ns_) {
    if (name == node || now_mono_ns - at_ns < kMassLossWindowMs * kNsPerMs) ++lost;
  }
  return lost > std::max(kMassLossNodes, static_cast<uint32_t>(nodes_in_all * kMassLossShare));
}

void MassLossGuard::NoteLoss(const std::string& node, int64_t now_mono_ns) {
  std::erase_if(lost_at_ns_, [&](const auto& entry) {
    return now_mono_ns - entry.second >= kMassLossWindowMs * kNsPerMs;
  });
  lost_at_ns_[node] = now_mono_ns;
}

}  // namespace holdfast::sched
