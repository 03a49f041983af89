// SPDX-License-Identifier: Apache-2.0
#include "agent/work_queue.h"

#include <pthread.h>

#include <utility>

#include "base/clock.h"

namespace holdfast::agent {

WorkQueue::WorkQueue(std::string name, size_t tasks_max)
    : name_(std::move(name)), tasks_max_(tasks_max), thread_([this] { Main(); }) {
  ::pthread_setname_np(thread_.native_handle(), name_.c_str());
}

WorkQueue::~WorkQueue() {
  while (!Stop(kNsPerSec)) {
  }
}

bool WorkQueue::Push(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (stop_ || tasks_.size() >= tasks_max_) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

bool WorkQueue::Stop(int64_t wait_ns) {
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    dropped.swap(tasks_);
    changed_.NotifyAll();
    while (!ended_) {
      if (!changed_.WaitForNs(mutex_, wait_ns) && !ended_) return false;
    }
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

void WorkQueue::Main() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stop_) changed_.Wait(mutex_);
      if (stop_) {
        ended_ = true;
        changed_.NotifyAll();
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace holdfast::agent
