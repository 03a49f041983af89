// SPDX-License-Identifier: Apache-2.0
// Tells the streams of desired states when to look again. A level needs no queue: however often a
// node's bell rings while its stream is busy, the stream builds and sends the newest state once.
//
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_BACKGROUND_DESIRED_PUBLISHER_H_
#define HOLDFAST_SCHEDULER_BACKGROUND_DESIRED_PUBLISHER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"

namespace holdfast::sched {

class DesiredPublisher {
 public:
  void Ring(const std::set<std::string>& nodes);

  // Waits until the node's version is not `seen` any more; false after `timeout_ms` or when
  // stopping. Updates `seen`.
  bool Wait(const std::string& node, uint64_t* seen, int64_t timeout_ms);

  // A new stream of a node takes the place of the old one: returns its number, which Newest
  // compares.
  uint64_t BeginStream(const std::string& node);
  bool IsNewestStream(const std::string& node, uint64_t stream);

  void Stop();
  bool stopping();

 private:
  struct Bell {
    uint64_t version = 1;
    uint64_t stream = 0;
    CondVar rung;
  };
  Bell* Find(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::map<std::string, std::unique_ptr<Bell>> bells_
      ABSL_GUARDED_BY(mutex_);  // one a node, never erased: waiters hold them
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_BACKGROUND_DESIRED_PUBLISHER_H_
