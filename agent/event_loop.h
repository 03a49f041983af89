// SPDX-License-Identifier: Apache-2.0
// The agent's main loop: one thread that owns all keeper and rank state. epoll over descriptors,
// timers, and an eventfd by which other threads hand in work. Everything registered here is called
// on the loop's thread, with no lock held.
//
// Threads: Post, Stop and Progress may be called from any; all else only from the loop's thread (or
// before Run).
#ifndef HOLDFAST_AGENT_EVENT_LOOP_H_
#define HOLDFAST_AGENT_EVENT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using FdTask = std::function<void(uint32_t events)>;

  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock* clock);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `task` on the loop's thread, soon. False once the loop has stopped: the task will not run.
  bool Post(Task task);

  // `events` as for epoll (level-triggered). The descriptor stays the caller's and is unwatched
  // before it is closed.
  absl::Status Watch(int fd, uint32_t events, FdTask task);
  void Unwatch(int fd);

  // Calls `task` once at or after `at_ns` (CLOCK_MONOTONIC). The id is never 0.
  uint64_t At(int64_t at_ns, Task task);
  void Cancel(uint64_t id);
  int64_t Now() const { return clock_->MonoNs(); }
  const Clock* clock() const { return clock_; }

  void Run();  // until Stop
  void Stop();
  uint64_t Progress() const {
    return turns_.load(std::memory_order_relaxed);
  }  // grows while the loop turns

 private:
  struct Watched {
    int fd;
    FdTask task;
    bool dead = false;
  };
  EventLoop(const Clock* clock, UniqueFd epoll, UniqueFd wake, UniqueFd timer);
  void RunPosted();
  void RunTimers();
  void ArmTimer();

  const Clock* clock_;
  UniqueFd epoll_, wake_, timer_;
  std::map<int, std::shared_ptr<Watched>>
      watched_;  // shared: a task may unwatch itself while it runs
  std::map<std::pair<int64_t, uint64_t>, Task> timers_;
  std::map<uint64_t, int64_t> timer_times_;
  uint64_t next_timer_ = 1;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> turns_{0};
  Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_EVENT_LOOP_H_
