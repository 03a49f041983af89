// SPDX-License-Identifier: Apache-2.0
// What is wrong with ranks that live. Agents say which of their ranks differ from their own past
// and what each is certain to wait for; here the ranks of a job are seen together. A rank that
// waits for the network, or for something unknown, may wait for a peer: it is never named. One that
// waits for a file, a pipe, a child or a disk is, and one that sleeps while others wait. When all
// pause together and nobody waits for anybody, nothing is wrong. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_LIVE_CAUSES_H_
#define HOLDFAST_SCHEDULER_CORE_LIVE_CAUSES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::sched {

struct LiveRank {
  uint32_t rank = 0;
  std::string node;
  int64_t stopped_ns = 0;          // since when it is STOPPED for certain; 0: it is not
  std::optional<v1::Quiet> quiet;  // as of its newest level
};

struct LiveCause {
  std::string cause;  // proto/modes.h
  v1::FaultClass fault_class = v1::FAULT_CLASS_UNSPECIFIED;
  std::vector<uint32_t> ranks;
  std::string node;      // of the first
  std::string what;      // a sentence a person acts on
  std::string evidence;  // how it differs from its past, Python's lines
  double confidence = 0;
  int64_t begin_ns = 0;
  int64_t limit_ms = 0;  // acting before it is never right
};

std::optional<LiveCause> FindStopped(const std::vector<LiveRank>& ranks);
std::optional<LiveCause> FindHang(const std::vector<LiveRank>& ranks, int64_t now_ns);

// What acting costs: the work since the newest point all ranks can go back to, and the restart.
// Where no such point is seen (the script keeps its own), work of between kUnseenWorkMsMin and
// kUnseenWorkMsMax is taken to be lost, the attempt's age in between.
inline constexpr int64_t kUnseenWorkMsMin = 20'000;
inline constexpr int64_t kUnseenWorkMsMax = 180'000;
inline constexpr int64_t kRestartMsDefault = 10'000;  // until one was seen
struct RestartCost {
  bool points_visible = false;
  int64_t since_point_ms = 0;  // since the newest point, when visible
  int64_t attempt_age_ms = 0;
  int64_t restart_ms = kRestartMsDefault;
};
int64_t CostMs(const RestartCost& cost);

// Whether the time lost makes acting right by now.
bool IsDue(const LiveCause& cause, int64_t cost_ms, int64_t now_ns);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_LIVE_CAUSES_H_
