// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job on this node are stopped: a pure function of (now, state). KILL at once;
// TERM, then KILL; or should_stop, then TERM, then KILL. A later, harder order overtakes a softer
// one; a softer one never slows a harder one down.
#ifndef HOLDFAST_AGENT_CORE_STOP_LADDER_H_
#define HOLDFAST_AGENT_CORE_STOP_LADDER_H_

#include <cstdint>

namespace holdfast::agent {

enum class StopKind { kNone = 0, kGraceful = 1, kTerm = 2, kKill = 3 };  // by hardness

// KILL is sent again this often while a rank still lives (a process in D state, a child that was
// forked meanwhile).
inline constexpr int64_t kKillAgainNs = 1'000'000'000;

// All times are CLOCK_MONOTONIC in ns; 0 = has not happened.
struct StopState {
  StopKind kind = StopKind::kNone;
  int64_t begin_ns = 0;
  int64_t grace_ns = 0;  // of kGraceful: from should_stop to TERM
  bool should_stop_set = false;
  int64_t term_sent_ns = 0;
  int64_t kill_sent_ns = 0;  // the newest one
  int64_t first_kill_ns = 0;
};

struct StopStep {
  bool set_should_stop = false;
  int signal = 0;       // SIGTERM, SIGKILL or none
  int64_t next_ns = 0;  // when to ask again; 0: nothing more will come
};

// Begins a stop or hardens the one that runs. `kind` kNone changes nothing.
void BeginStop(StopKind kind, int64_t grace_ns, int64_t now_ns, StopState* state);

// What to do now; marks it as done in `state`.
StopStep NextStopStep(int64_t now_ns, StopState* state);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_STOP_LADDER_H_
