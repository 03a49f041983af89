// SPDX-License-Identifier: Apache-2.0
// How a thread that looks at something now and then is told to end.
#ifndef HOLDFAST_CLI_STOP_FLAG_H_
#define HOLDFAST_CLI_STOP_FLAG_H_

#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::cli {

// Any thread.
class StopFlag {
 public:
  void Set() {
    const MutexLock lock(mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  // Returns after `ms`, or as soon as it is set: then true.
  bool WaitMs(int64_t ms) {
    const SystemClock clock;
    const int64_t end_ns = clock.MonoNs() + ms * kNsPerMs;
    const MutexLock lock(mutex_);
    for (int64_t left = ms * kNsPerMs; !set_ && left > 0; left = end_ns - clock.MonoNs())
      changed_.WaitForNs(mutex_, left);
    return set_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_STOP_FLAG_H_
