// SPDX-License-Identifier: Apache-2.0
// The mesh: where a rank stands on the named axes dp (data parallel) and tp (tensor parallel). Pure
// index arithmetic.
//
// Rank order: tp is fastest, so the ranks of one tensor-parallel group are neighbours (and land on
// one node, where the traffic is). A group's position is the mesh coordinate: Gloo gives the same
// bits only in the same rank order.
#ifndef HOLDFAST_PARALLEL_MESH_H_
#define HOLDFAST_PARALLEL_MESH_H_

#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::parallel {

class Mesh {
 public:
  // INVALID_ARGUMENT unless dp, tp >= 1, dp * tp == ranks and 0 <= rank < ranks.
  static absl::StatusOr<Mesh> Create(int dp, int tp, int rank, int ranks);

  int dp() const { return dp_; }
  int tp() const { return tp_; }
  int ranks() const { return dp_ * tp_; }
  int rank() const { return rank_; }
  int dp_index() const { return rank_ / tp_; }
  int tp_index() const { return rank_ % tp_; }

  // Global ranks of this rank's group on an axis, in coordinate order.
  std::vector<int> DpGroup() const;
  std::vector<int> TpGroup() const;

 private:
  Mesh(int dp, int tp, int rank) : dp_(dp), tp_(tp), rank_(rank) {}
  int dp_, tp_, rank_;
};

}  // namespace holdfast::parallel

#endif  // HOLDFAST_PARALLEL_MESH_H_
