// SPDX-License-Identifier: Apache-2.0
#include "parallel/mesh.h"

#include "absl/strings/str_cat.h"

namespace holdfast::parallel {

absl::StatusOr<Mesh> Mesh::Create(int dp, int tp, int rank, int ranks) {
  if (dp < 1 || tp < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.dp: ", dp, " and parallel.tp: ", tp, " must both be at least 1"));
  }
  if (static_cast<long long>(dp) * tp != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: dp ", dp, " x tp ", tp, " is ", static_cast<long long>(dp) * tp,
                     " ranks, but the job has ", ranks,
                     "; change parallel.dp, parallel.tp or the job's nodes and gpus_per_node"));
  }
  if (rank < 0 || rank >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is outside 0..", ranks - 1));
  }
  return Mesh(dp, tp, rank);
}

std::vector<int> Mesh::DpGroup() const {
  std::vector<int> group;
  for (int d = 0; d < dp_; ++d) group.push_back(d * tp_ + tp_index());
  return group;
}

std::vector<int> Mesh::TpGroup() const {
  std::vector<int> group;
  for (int t = 0; t < tp_; ++t) group.push_back(dp_index() * tp_ + t);
  return group;
}

}  // namespace holdfast::parallel
