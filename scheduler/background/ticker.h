// SPDX-License-Identifier: Apache-2.0
// Everything that happens because time passed: leases, back-off, time limits, early exits, waits
// for last saves. Reactions to reports do not wait for it.
//
// Threads: one of its own, between Start and Stop.
#ifndef HOLDFAST_SCHEDULER_BACKGROUND_TICKER_H_
#define HOLDFAST_SCHEDULER_BACKGROUND_TICKER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

inline constexpr int64_t kTickMs = 100;

class Ticker {
 public:
  explicit Ticker(CoreLock* core) : core_(core) {}
  ~Ticker() { Stop(); }
  void Start();
  void Stop();
  // Grows with every turn; the watchdog is fed only while it does.
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  void Main();
  CoreLock* const core_;
  std::atomic<uint64_t> turns_{0};
  std::string last_error_;
  Mutex mutex_;
  CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_BACKGROUND_TICKER_H_
