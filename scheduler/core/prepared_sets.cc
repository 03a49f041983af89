// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/prepared_sets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace holdfast::sched {

OpenSave* PreparedSets::Slot(const Point& point) {
  const auto it = open_.find(point);
  if (it != open_.end()) return &it->second;
  if (open_.size() >= kOpenSavesMax) return nullptr;
  return &open_[point];
}

PreparedSets::Added PreparedSets::Add(uint64_t job, const Point& point, uint32_t rank,
                                      const std::string& node, const std::string& manifest,
                                      std::string* reason) {
  const auto it = open_.find(point);
  if (it != open_.end() && it->second.manifests.count(rank)) {
    it->second.nodes.insert(node);
    return Added::kKnown;
  }
  if (manifest.empty()) {
    *reason = "the manifest is empty and was not delivered before";
    return Added::kRefused;
  }
  absl::StatusOr<ckpt::RankManifest> decoded = ckpt::DecodeRankManifest(manifest);
  if (!decoded.ok()) {
    *reason = std::string(decoded.status().message());
    return Added::kRefused;
  }
  const CheckpointId want{JobId{job}, point.attempt, point.step};
  if (decoded->id != want || decoded->rank != rank) {
    *reason = absl::StrCat("the manifest is of ", ToString(decoded->id), " rank ", decoded->rank,
                           ", the report of ", ToString(want), " rank ", rank);
    return Added::kRefused;
  }
  OpenSave* save = Slot(point);
  if (save == nullptr) {
    *reason = absl::StrCat("more than ", kOpenSavesMax, " saves of one job are open");
    return Added::kRefused;
  }
  save->manifests.emplace(rank, *std::move(decoded));
  save->nodes.insert(node);
  newest_of_rank_[rank] = std::max(newest_of_rank_[rank], point);
  return Added::kNew;
}

void PreparedSets::AddError(const Point& point, uint32_t rank, const std::string& node,
                            const std::string& error, v1::FaultClass error_class) {
  OpenSave* save = Slot(point);
  if (save == nullptr) return;
  save->nodes.insert(node);
  if (!save->error.empty()) return;
  save->error = absl::StrCat("rank ", rank, " on ", node, ": ", error);
  save->error_class = error_class;
}

void PreparedSets::Drop(const Point& point) { open_.erase(point); }

bool PreparedSets::IsWhole(const Point& point, uint32_t world_size) const {
  const auto it = open_.find(point);
  return it != open_.end() && it->second.error.empty() && it->second.manifests.size() == world_size;
}

uint64_t PreparedSets::AckStep(uint64_t attempt, const std::vector<uint32_t>& ranks) const {
  uint64_t step = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto it = newest_of_rank_.find(ranks[i]);
    const uint64_t newest =
        it != newest_of_rank_.end() && it->second.attempt == attempt ? it->second.step : 0;
    step = i == 0 ? newest : std::min(step, newest);
  }
  return step;
}

}  // namespace holdfast::sched
