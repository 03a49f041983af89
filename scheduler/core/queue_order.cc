// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/queue_order.h"

#include <algorithm>

namespace holdfast::sched {

void SortQueue(std::vector<QueueEntry>* entries) {
  std::sort(entries->begin(), entries->end(), [](const QueueEntry& a, const QueueEntry& b) {
    if (a.recovering != b.recovering) return a.recovering;
    if (a.priority != b.priority) return a.priority > b.priority;
    return a.job < b.job;
  });
}

bool BlocksThoseBehind(bool recovering, bool fits_ready_nodes, bool fits_all_known_nodes,
                       int64_t waiting_ms) {
  if (fits_ready_nodes) return true;
  return recovering && fits_all_known_nodes && waiting_ms < kRecoveringHoldMs;
}

}  // namespace holdfast::sched
