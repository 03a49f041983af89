// SPDX-License-Identifier: Apache-2.0
#include "scheduler/background/desired_publisher.h"

#include "base/clock.h"

namespace holdfast::sched {

DesiredPublisher::Bell* DesiredPublisher::Find(const std::string& node) {
  std::unique_ptr<Bell>& bell = bells_[node];
  if (bell == nullptr) bell = std::make_unique<Bell>();
  return bell.get();
}

void DesiredPublisher::Ring(const std::set<std::string>& nodes) {
  MutexLock lock(mutex_);
  for (const std::string& node : nodes) {
    Bell* bell = Find(node);
    ++bell->version;
    bell->rung.NotifyAll();
  }
}

bool DesiredPublisher::Wait(const std::string& node, uint64_t* seen, int64_t timeout_ms) {
  MutexLock lock(mutex_);
  Bell* bell = Find(node);
  if (bell->version == *seen && !stopping_) bell->rung.WaitForNs(mutex_, timeout_ms * kNsPerMs);
  if (stopping_ || bell->version == *seen) return false;
  *seen = bell->version;
  return true;
}

uint64_t DesiredPublisher::BeginStream(const std::string& node) {
  MutexLock lock(mutex_);
  Bell* bell = Find(node);
  ++bell->stream;
  bell->rung.NotifyAll();
  return bell->stream;
}

bool DesiredPublisher::IsNewestStream(const std::string& node, uint64_t stream) {
  MutexLock lock(mutex_);
  return Find(node)->stream == stream;
}

void DesiredPublisher::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  for (auto& [node, bell] : bells_) bell->rung.NotifyAll();
}

bool DesiredPublisher::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

}  // namespace holdfast::sched
