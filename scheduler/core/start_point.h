// SPDX-License-Identifier: Apache-2.0
// Where an attempt starts from, and which points belong to the job's line. Pure.
//
// An attempt records the point it started from. Seen from the newest attempt that ran, the line is:
// everything that attempt made, then the point it started from and what lies before it in the same
// way. What an older attempt made beyond the point from which a newer one started is off the line;
// only an explicit request (--from, restart --from) chooses it.
#ifndef HOLDFAST_SCHEDULER_CORE_START_POINT_H_
#define HOLDFAST_SCHEDULER_CORE_START_POINT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"
#include "scheduler/store/records.pb.h"

namespace holdfast::sched {

inline constexpr int kLineLinksMax = 1024;

// (attempt, step) of a snapshot or checkpoint.
struct Point {
  uint64_t attempt = 0;
  uint64_t step = 0;
  auto operator<=>(const Point&) const = default;
};

class Line {
 public:
  Line(uint64_t job, const std::vector<records::AttemptLink>& links);
  bool Contains(const Point& point) const;
  // The checkpoint of another job from which this one began; attempt 0 when there is none.
  const v1::CheckpointRef& foreign_root() const { return foreign_root_; }

 private:
  std::map<uint64_t, uint64_t> newest_step_;  // by attempt on the line: points up to this step
  v1::CheckpointRef foreign_root_;
};

// Drops links that the newest attempt does not descend from, and the oldest beyond kLineLinksMax.
void PruneLine(uint64_t job, std::vector<records::AttemptLink>* links);

// What the arenas of one node hold: rank -> sealed points.
using NodeArenas = std::map<uint32_t, std::vector<Point>>;

// The newest point on the line that every rank of `placement` finds sealed in the memory of the
// node where it will run, but for those of `damaged`. attempt 0 when there is none.
Point NewestCompleteSnapshot(const v1::Placement& placement,
                             const std::map<std::string, NodeArenas>& arenas, const Line& line,
                             const std::vector<v1::StartPoint>& damaged = {});

struct StartRequest {
  uint64_t job = 0;
  const v1::Placement* placement = nullptr;
  const std::map<std::string, NodeArenas>* arenas = nullptr;
  const Line* line = nullptr;
  std::vector<v1::CheckpointRef> committed;  // of this job, on or off the line
  v1::CheckpointRef from;  // spec.from, resolved; attempt 0: none. Used while the line is empty.
  std::vector<v1::StartPoint> damaged;  // of this job; only `wanted_step` chooses one
  uint64_t wanted_step = 0;             // an operator's restart --from; 0: the newest
};

// The newer of the newest complete snapshot and the newest committed checkpoint on the line (memory
// wins a tie: it is quicker), else `from`, else scratch. With `wanted_step`: the checkpoint, or the
// snapshot, of exactly that step, of the highest attempt, off the line too; NOT_FOUND naming what
// there is.
absl::StatusOr<v1::StartPoint> ChooseStartPoint(const StartRequest& request);

// "snapshot of step 12 (attempt 1)", "checkpoint j-1@10.1", "the beginning".
std::string DescribeStart(const v1::StartPoint& start);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_START_POINT_H_
