// SPDX-License-Identifier: Apache-2.0
// The life of one rank of one attempt on this node, as a pure state machine: what the keeper says
// goes in, edges worth a report come out.
//
// - NONE -started-> RUNNING, -start failed-> START_FAILED
// - RUNNING -stopped-> RUNNING with a stop pending -grace passed-> STOPPED -continued-> RUNNING
// - RUNNING or STOPPED -exited-> EXITED
//
// A stop shorter than kStoppedRankGraceMs is healthy and never reported. All times are
// CLOCK_MONOTONIC in ns.
#ifndef HOLDFAST_AGENT_CORE_RANK_FSM_H_
#define HOLDFAST_AGENT_CORE_RANK_FSM_H_

#include <cstdint>
#include <vector>

namespace holdfast::agent {

enum class RankPhase { kNone, kRunning, kStopped, kExited, kStartFailed };

struct RankEdge {
  enum Kind { kStarted, kStopped, kContinued, kExited, kStartFailed };
  Kind kind;
  int64_t at_ns;  // when it happened, not when it was noticed
};

// Why a rank does not run although it lives.
enum class StopCause { kNone, kSignal, kFrozen };

class RankFsm {
 public:
  RankPhase phase() const { return phase_; }
  bool Alive() const { return phase_ == RankPhase::kRunning || phase_ == RankPhase::kStopped; }
  int32_t exit_code() const { return exit_code_; }  // >= 0, or -signal
  int64_t exit_ns() const { return exit_ns_; }
  StopCause cause() const { return cause_; }
  // When Tick has something to decide; 0: nothing pending.
  int64_t PendingStopAtNs() const;

  // What happened. `wait_status` is code<<32|status of waitid. Anything after an exit is ignored.
  std::vector<RankEdge> Started(int64_t now_ns);
  std::vector<RankEdge> StartFailed(int64_t now_ns);
  std::vector<RankEdge> Stopped(int64_t at_ns);
  std::vector<RankEdge> Continued(int64_t at_ns);
  std::vector<RankEdge> Exited(uint64_t wait_status, int64_t at_ns);
  // The result of looking at its cgroups.
  std::vector<RankEdge> FrozenSeen(bool frozen, int64_t now_ns);
  // `traced`: a debugger holds the process; then a stop is not a fault.
  std::vector<RankEdge> Tick(int64_t now_ns, bool traced);

 private:
  RankPhase phase_ = RankPhase::kNone;
  StopCause cause_ = StopCause::kNone;
  int64_t signal_stop_ns_ = 0;
  int64_t frozen_ns_ = 0;
  int32_t exit_code_ = 0;
  int64_t exit_ns_ = 0;

  std::vector<RankEdge> Resumed(int64_t at_ns);
};

// Exit code >= 0 or -signal from code<<32|status as waitid reports it.
int32_t ExitCodeFromWait(uint64_t wait_status);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_RANK_FSM_H_
