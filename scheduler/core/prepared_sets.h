// SPDX-License-Identifier: Apache-2.0
// Collects the manifests of ranks that have PREPARED a save, until a set is whole. Pure; holds no
// more than kOpenSavesMax sets.
#ifndef HOLDFAST_SCHEDULER_CORE_PREPARED_SETS_H_
#define HOLDFAST_SCHEDULER_CORE_PREPARED_SETS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ckpt/format/manifest.h"
#include "scheduler/core/start_point.h"

namespace holdfast::sched {

inline constexpr size_t kOpenSavesMax = 16;

struct OpenSave {
  std::map<uint32_t, ckpt::RankManifest> manifests;  // by rank
  std::set<std::string> nodes;                       // that hold parts of it
  std::string error;                                 // the first rank that failed says why
  v1::FaultClass error_class = v1::FAULT_CLASS_UNSPECIFIED;
};

class PreparedSets {
 public:
  enum class Added { kNew, kKnown, kRefused };

  // A manifest must be of (job, attempt, step, rank); it comes from another process and is decoded
  // as hostile input. `reason` is set when refused.
  Added Add(uint64_t job, const Point& point, uint32_t rank, const std::string& node,
            const std::string& manifest, std::string* reason);
  void AddError(const Point& point, uint32_t rank, const std::string& node,
                const std::string& error, v1::FaultClass error_class);
  void Drop(const Point& point);
  void Clear() { open_.clear(); }

  bool IsWhole(const Point& point, uint32_t world_size) const;
  const std::map<Point, OpenSave>& open() const { return open_; }
  // The newest step of `attempt` of which every rank in `ranks` has delivered its manifest; 0:
  // none.
  uint64_t AckStep(uint64_t attempt, const std::vector<uint32_t>& ranks) const;

 private:
  OpenSave* Slot(const Point& point);
  std::map<Point, OpenSave> open_;
  std::map<uint32_t, Point> newest_of_rank_;  // delivered, also of sets that are closed by now
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_PREPARED_SETS_H_
