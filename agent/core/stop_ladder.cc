// SPDX-License-Identifier: Apache-2.0
#include "agent/core/stop_ladder.h"

#include <csignal>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {

void BeginStop(StopKind kind, int64_t grace_ns, int64_t now_ns, StopState* state) {
  if (kind <= state->kind) return;
  state->kind = kind;
  state->begin_ns = now_ns;
  state->grace_ns = grace_ns;
}

StopStep NextStopStep(int64_t now_ns, StopState* state) {
  StopStep step;
  if (state->kind == StopKind::kNone) return step;
  int64_t term_at = state->begin_ns;
  if (state->kind == StopKind::kGraceful) {
    if (!state->should_stop_set) step.set_should_stop = state->should_stop_set = true;
    term_at += state->grace_ns;
  }
  if (state->kind != StopKind::kKill) {
    if (state->term_sent_ns == 0 && now_ns < term_at) {
      step.next_ns = term_at;
      return step;
    }
    if (state->term_sent_ns == 0) {
      state->term_sent_ns = now_ns;
      step.signal = SIGTERM;
      step.next_ns = now_ns + kStopGraceMs * kNsPerMs;
      return step;
    }
    const int64_t kill_at = state->term_sent_ns + kStopGraceMs * kNsPerMs;
    if (now_ns < kill_at) {
      step.next_ns = kill_at;
      return step;
    }
  }
  if (state->kill_sent_ns == 0 || now_ns - state->kill_sent_ns >= kKillAgainNs) {
    state->kill_sent_ns = now_ns;
    if (state->first_kill_ns == 0) state->first_kill_ns = now_ns;
    step.signal = SIGKILL;
  }
  step.next_ns = state->kill_sent_ns + kKillAgainNs;
  return step;
}

}  // namespace holdfast::agent
