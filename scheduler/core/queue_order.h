// SPDX-License-Identifier: Apache-2.0
// The order of the queue: jobs that are to go on after a fault first, then by priority, then first
// come first served. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_QUEUE_ORDER_H_
#define HOLDFAST_SCHEDULER_CORE_QUEUE_ORDER_H_

#include <cstdint>
#include <vector>

namespace holdfast::sched {

// How long a job that lost a node holds the front of the queue although it cannot fit until that
// node is back.
inline constexpr int64_t kRecoveringHoldMs = 10 * 60 * 1000;

struct QueueEntry {
  uint64_t job = 0;
  int32_t priority = 0;
  bool recovering = false;
};

// Sorts into the order in which jobs are tried. A job id tells who came first: ids only grow.
void SortQueue(std::vector<QueueEntry>* entries);

// Whether jobs behind one that does not fit now must wait for it: yes when it can fit on the nodes
// that are there (it would starve otherwise), no when it cannot fit at all. A recovering job also
// holds its place for kRecoveringHoldMs while the nodes that are missing may still come back.
bool BlocksThoseBehind(bool recovering, bool fits_ready_nodes, bool fits_all_known_nodes,
                       int64_t waiting_ms);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_QUEUE_ORDER_H_
