// SPDX-License-Identifier: Apache-2.0
// Gang placement by free devices: the whole gang or nothing, on exactly as many nodes as the job
// asks for, on READY nodes only. Pure. What is "free" is the caller's: a device that a job still
// holds on a lost or dirty node is not in `free`.
#ifndef HOLDFAST_SCHEDULER_CORE_PLACEMENT_H_
#define HOLDFAST_SCHEDULER_CORE_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::sched {

struct FreeDevice {
  std::string id;
  uint32_t index = 0;
};

struct PlacementNode {
  std::string name;
  bool ready = false;
  std::string why_not;           // when not ready: "LOST", "DRAINING", ...
  uint32_t devices = 0;          // healthy devices in all, free or not
  std::vector<FreeDevice> free;  // healthy and held by nobody
  uint32_t ranks_placed = 0;     // of all jobs, for jobs that ask for no device
};

struct PlacementRequest {
  uint32_t nodes = 1;
  uint32_t gpus_per_node = 0;   // one rank for each; 0: ranks without a device
  uint32_t ranks_per_node = 1;  // when gpus_per_node is 0
  // Node of each group rank in the placement before, if any. A node that still fits keeps its
  // place, so that its ranks find their snapshots in its memory.
  std::vector<std::string> preferred;
};

struct PlacementResult {
  bool placed = false;
  v1::Placement placement;  // when placed
  std::string reason;       // when not: what is missing, with numbers, and what would fit
};

// Among nodes that fit: preferred ones at their old place, then those with the fewest free devices
// (tight packing), then by name.
PlacementResult Place(const PlacementRequest& request, const std::vector<PlacementNode>& nodes);

// Whether the request would fit if every device in `devices` were free. `any_state`: count nodes
// that are not ready too.
bool CouldEverFit(const PlacementRequest& request, const std::vector<PlacementNode>& nodes,
                  bool any_state);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_PLACEMENT_H_
