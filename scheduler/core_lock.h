// SPDX-License-Identifier: Apache-2.0
// The engine behind one lock, and the bells that ring when something changed. Every operation takes
// the lock once, decides, persists and leaves; nobody holds it while talking to the network.
//
// Threads: any. Lock order: the engine's lock, then a bell's own.
#ifndef HOLDFAST_SCHEDULER_CORE_LOCK_H_
#define HOLDFAST_SCHEDULER_CORE_LOCK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "scheduler/background/desired_publisher.h"
#include "scheduler/background/event_bell.h"
#include "scheduler/engine/engine.h"

namespace holdfast::sched {

class CoreLock {
 public:
  // `clock` must outlive this.
  CoreLock(std::unique_ptr<Engine> engine, const Clock* clock)
      : engine_(std::move(engine)), clock_(clock) {
    event_bell_.Ring(engine_->state().last_event);
  }

  // Runs `f(engine, now)` under the lock and rings for what changed.
  template <typename F>
  auto With(F f) {
    MutexLock lock(mutex_);
    const Now now{clock_->MonoNs(), clock_->WallNs()};
    auto result = f(*engine_, now);
    const Changes changes = engine_->TakeChanges();
    publisher_.Ring(changes.nodes);
    event_bell_.Ring(changes.last_event);
    return result;
  }

  DesiredPublisher& publisher() { return publisher_; }
  EventBell& event_bell() { return event_bell_; }
  const Clock& clock() const { return *clock_; }
  // Reading stored events needs no lock: the store is thread-safe and events are never changed.
  absl::StatusOr<std::vector<v1::Event>> Events(uint64_t after, size_t limit, uint64_t job) const {
    return engine_->Events(after, limit, job);
  }

  // Ends every wait; streams end with UNAVAILABLE.
  void Stop() {
    publisher_.Stop();
    event_bell_.Stop();
  }

 private:
  Mutex mutex_;
  const std::unique_ptr<Engine> engine_;  // calls that change or read its state under mutex_
  const Clock* const clock_;
  DesiredPublisher publisher_;
  EventBell event_bell_;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_LOCK_H_
