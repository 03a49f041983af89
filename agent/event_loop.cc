// SPDX-License-Identifier: Apache-2.0
#include "agent/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int kEventsPerTurn = 64;
constexpr int kTurnMsMax =
    1000;  // the loop turns at least this often, so that its progress can be watched

void Drain(int fd) {
  uint64_t ignored = 0;
  while (::read(fd, &ignored, sizeof ignored) > 0) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(const Clock* clock) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() || !timer.valid())
    return ErrnoStatus(errno, "create the event loop");
  for (const int fd : {wake.get(), timer.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return ErrnoStatus(errno, "epoll_ctl");
  }
  return std::unique_ptr<EventLoop>(
      new EventLoop(clock, std::move(epoll), std::move(wake), std::move(timer)));
}

EventLoop::EventLoop(const Clock* clock, UniqueFd epoll, UniqueFd wake, UniqueFd timer)
    : clock_(clock), epoll_(std::move(epoll)), wake_(std::move(wake)), timer_(std::move(timer)) {}

EventLoop::~EventLoop() = default;

bool EventLoop::Post(Task task) {
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  return ::write(wake_.get(), &one, sizeof one) == sizeof one || errno == EAGAIN;
}

absl::Status EventLoop::Watch(int fd, uint32_t events, FdTask task) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return ErrnoStatus(errno, "epoll_ctl");
  watched_[fd] = std::make_shared<Watched>(Watched{fd, std::move(task)});
  return absl::OkStatus();
}

void EventLoop::Unwatch(int fd) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  it->second->dead = true;
  watched_.erase(it);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

uint64_t EventLoop::At(int64_t at_ns, Task task) {
  const uint64_t id = next_timer_++;
  timers_.emplace(std::make_pair(at_ns, id), std::move(task));
  timer_times_[id] = at_ns;
  return id;
}

void EventLoop::Cancel(uint64_t id) {
  const auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, id});
  timer_times_.erase(it);
}

void EventLoop::ArmTimer() {
  itimerspec spec{};
  if (!timers_.empty()) {
    const int64_t at = std::max<int64_t>(1, timers_.begin()->first.first);
    spec.it_value.tv_sec = at / kNsPerSec;
    spec.it_value.tv_nsec = at % kNsPerSec;
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void EventLoop::RunTimers() {
  const int64_t now = Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    Task task = std::move(timers_.begin()->second);
    timer_times_.erase(timers_.begin()->first.second);
    timers_.erase(timers_.begin());
    task();
  }
}

void EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

void EventLoop::Run() {
  while (!stop_.load(std::memory_order_acquire)) {
    turns_.fetch_add(1, std::memory_order_relaxed);
    RunPosted();
    RunTimers();
    ArmTimer();
    epoll_event events[kEventsPerTurn];
    const int n = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, kTurnMsMax);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_.get() || fd == timer_.get()) {
        Drain(fd);
        continue;
      }
      const auto it = watched_.find(fd);
      if (it == watched_.end()) continue;
      const std::shared_ptr<Watched> entry = it->second;
      if (!entry->dead) entry->task(events[i].events);
    }
  }
  std::vector<Task> dropped;  // destroyed outside the lock: what they hold may post
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(posted_);
}

void EventLoop::Stop() {
  stop_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;  // full: the loop is awake anyway
}

}  // namespace holdfast::agent
