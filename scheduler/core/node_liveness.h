// SPDX-License-Identifier: Apache-2.0
// Is a node there? From the second missed beat on two neighbours are asked; LOST needs the lease to
// have passed and no neighbour that hears the node. Many losses in a short time are more likely
// ours than theirs and are held for an operator. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_NODE_LIVENESS_H_
#define HOLDFAST_SCHEDULER_CORE_NODE_LIVENESS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::sched {

inline constexpr int64_t kSuspectAfterMs = 2 * kBeatIntervalMs;  // the second missed beat
inline constexpr int kNeighboursAsked = 2;
inline constexpr int64_t kOwnStallMs = 500;  // between two looks that are due each 100 ms
inline constexpr int64_t kMassLossWindowMs = 60'000;
inline constexpr uint32_t kMassLossNodes = 2;
inline constexpr double kMassLossShare = 0.10;

// A neighbour's answer about a node.
struct ProbeAnswer {
  bool answered = false;           // the neighbour itself could be asked
  bool reachable = false;          // it reached the node just now
  int64_t last_heard_age_ms = -1;  // of a ping from the node; -1: never
  int64_t at_mono_ns = 0;          // when the answer came
};

struct LivenessInput {
  int64_t last_beat_mono_ns = 0;               // or the start of the fresh lease
  std::map<std::string, ProbeAnswer> answers;  // by neighbour, since the node was suspected
  uint32_t asked = 0;  // neighbours that were asked and whose answer is not in yet count here too
};

enum class Liveness { kReady, kSuspect, kLost };

struct LivenessVerdict {
  Liveness liveness = Liveness::kReady;
  bool ask_neighbours = false;
  std::string reason;
};

LivenessVerdict JudgeLiveness(const LivenessInput& input, int64_t now_mono_ns);

// Losses of the last minute, each node once. Losing one more is held when it would make them more
// than max(2, 10 %).
class MassLossGuard {
 public:
  bool WouldHold(const std::string& node, uint32_t nodes_in_all, int64_t now_mono_ns) const;
  void NoteLoss(const std::string& node, int64_t now_mono_ns);

 private:
  std::map<std::string, int64_t> lost_at_ns_;  // bounded by the number of nodes
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_NODE_LIVENESS_H_
