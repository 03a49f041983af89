// SPDX-License-Identifier: Apache-2.0
// When this node must stop the ranks of jobs with `fence: witness`: a pure function. A node that
// for fence_ms, counted from the sending of its last answered beat, has neither an answer from a
// scheduler nor answers from at least half of its witnesses stops its ranks. The keeper enforces
// the deadline, so an agent that is dead or stopped counts as cut off.
#ifndef HOLDFAST_AGENT_CORE_FENCE_GUARD_H_
#define HOLDFAST_AGENT_CORE_FENCE_GUARD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace holdfast::agent {

// Remembers contacts; all times are CLOCK_MONOTONIC in ns of the *sending* of what was answered.
// One thread.
class FenceGuard {
 public:
  // At most kWitnessesMax are kept; answers of witnesses that stay are kept.
  void SetWitnesses(const std::vector<std::string>& addresses);
  void BeatAnswered(int64_t sent_ns);
  void WitnessAnswered(const std::string& address, int64_t sent_ns);
  std::vector<std::string> Witnesses() const;

  // The newest moment at which this node was provably heard; nullopt: never since this agent
  // started.
  std::optional<int64_t> LastContactNs() const;

  // The deadline to give to keepers: 0 = none (a node without witnesses never fences), nullopt =
  // leave the one they have (this agent has not heard anybody yet, so it has no right to move it).
  std::optional<int64_t> DeadlineNs(int64_t fence_ms) const;

 private:
  std::optional<int64_t> beat_ns_;
  std::map<std::string, int64_t> witness_ns_;  // 0: has not answered yet
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_FENCE_GUARD_H_
