// SPDX-License-Identifier: Apache-2.0
// The first task's eye on its job: tells on stderr what happens to it, and gives the run up when
// the job cannot go on with the nodes that are left.
#ifndef HOLDFAST_CLI_GUEST_WATCH_H_
#define HOLDFAST_CLI_GUEST_WATCH_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "cli/client.h"
#include "cli/guest/daemons.h"
#include "cli/run_narrator.h"
#include "cli/stop_flag.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

// A job that ran and has waited so long for nodes will not get any: the allocation has no others.
inline constexpr int64_t kShortOfNodesMs = 30'000;
// A recovery takes at most the fence (35 s unless --fence-after says otherwise) and its back-off.
inline constexpr int64_t kRecoveryMarginMs = 120'000;

// Since when a job is kept from running. Pure.
class StallClock {
 public:
  explicit StallClock(int64_t recovery_ms) : recovery_ms_(recovery_ms) {}
  // True once `state` has lasted too long. `started`: an attempt has run.
  bool TooLong(v1::JobState state, bool started, int64_t now_ns);

 private:
  const int64_t recovery_ms_;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  int64_t since_ns_ = 0;
};

class GuestWatch {
 public:
  // Has two threads and a connection of its own to `endpoint`. `incident_command` runs for each
  // incident; empty: none.
  GuestWatch(const std::string& endpoint, std::string job, int64_t fence_ms,
             const GuestDaemons* daemons, const std::string& incident_command);
  ~GuestWatch();
  GuestWatch(const GuestWatch&) = delete;
  GuestWatch& operator=(const GuestWatch&) = delete;

  // It has ended the run: too few nodes are left (then the job is cancelled), or the supervisor of
  // this node was killed (then this process is interrupted).
  bool gave_up() const { return gave_up_.load(); }

 private:
  void Look();
  void GiveUp(const std::string& why);

  SchedulerClient client_;
  const std::string job_;
  const GuestDaemons* const daemons_;
  StallClock stall_;
  RunNarrator narrator_;
  StopFlag stop_;
  std::atomic<bool> gave_up_{false};
  std::thread looker_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_WATCH_H_
