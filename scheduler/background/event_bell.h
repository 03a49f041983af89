// SPDX-License-Identifier: Apache-2.0
// Tells watchers of events that there are newer ones. Watchers read them from the store, so a slow
// one costs nobody memory.
//
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_BACKGROUND_EVENT_BELL_H_
#define HOLDFAST_SCHEDULER_BACKGROUND_EVENT_BELL_H_

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::sched {

class EventBell {
 public:
  void Ring(uint64_t last_event) {
    MutexLock lock(mutex_);
    if (last_event <= last_event_) return;
    last_event_ = last_event;
    rung_.NotifyAll();
  }
  uint64_t last_event() {
    MutexLock lock(mutex_);
    return last_event_;
  }
  // Waits for an event after `after`; returns the newest sequence, which is `after` or less when
  // the time ran out.
  uint64_t WaitAfter(uint64_t after, int64_t timeout_ms) {
    MutexLock lock(mutex_);
    if (last_event_ <= after && !stopping_) rung_.WaitForNs(mutex_, timeout_ms * kNsPerMs);
    return last_event_;
  }
  void Stop() {
    MutexLock lock(mutex_);
    stopping_ = true;
    rung_.NotifyAll();
  }
  bool stopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }

 private:
  Mutex mutex_;
  CondVar rung_;
  uint64_t last_event_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_BACKGROUND_EVENT_BELL_H_
