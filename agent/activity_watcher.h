// SPDX-License-Identifier: Apache-2.0
// Looks from outside at the ranks of this node and at all processes below them, each half second,
// and tells which differ from their own past (core/activity_model.h) and what each of these waits
// for (base/inspect/). It reads /proc and the logs' times; nothing is stopped, attached to or
// written. Where py-spy is at hand, it tells the Python line, once for each pause.
//
// Its own thread does all of that: a process stuck in the kernel can make a look at it hang, and
// then no more is heard of activity, and all else goes on. Threads: all functions from any.
#ifndef HOLDFAST_AGENT_ACTIVITY_WATCHER_H_
#define HOLDFAST_AGENT_ACTIVITY_WATCHER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::agent {

inline constexpr int64_t kActivityLookMs = 500;
inline constexpr int64_t kStaleMs = 5'000;

struct WatchedRank {
  uint64_t job = 0;
  uint64_t attempt = 0;
  uint32_t rank = 0;
  pid_t pid = 0;
  std::string log_base;
  uint64_t step = 0;
};

class ActivityWatcher {
 public:
  explicit ActivityWatcher(std::string proc_root = "/proc");
  // Waits up to kEndMsMax for a look that is under way; one that hangs is left behind.
  ~ActivityWatcher();
  ActivityWatcher(const ActivityWatcher&) = delete;
  ActivityWatcher& operator=(const ActivityWatcher&) = delete;

  // Takes the place of what was watched before.
  void SetRanks(std::vector<WatchedRank> ranks);
  // nullopt: its past is known, and it does not differ from it. A Quiet without a signal: nothing
  // is known, because it has not moved often enough yet, or was not looked at for kStaleMs.
  std::optional<v1::Quiet> QuietOf(uint64_t job, uint64_t attempt, uint32_t rank) const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // also held by the thread, which may outlive this
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_ACTIVITY_WATCHER_H_
