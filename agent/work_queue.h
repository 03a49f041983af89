// SPDX-License-Identifier: Apache-2.0
// One thread that carries out tasks in order: what may take long (disks) and must not hold up the
// loop. Bounded. Threads: Push from any. Stop lets the running task end, drops the rest and joins.
#ifndef HOLDFAST_AGENT_WORK_QUEUE_H_
#define HOLDFAST_AGENT_WORK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace holdfast::agent {

class WorkQueue {
 public:
  // `name` is the thread's, at most 15 bytes.
  WorkQueue(std::string name, size_t tasks_max);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False when the queue is full or stopped; the task is not taken then.
  bool Push(std::function<void()> task);
  // True when the running task ended within the time (and the thread is joined); false: it still
  // runs.
  bool Stop(int64_t wait_ns);

 private:
  void Main();

  const std::string name_;
  const size_t tasks_max_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_WORK_QUEUE_H_
