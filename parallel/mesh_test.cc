// SPDX-License-Identifier: Apache-2.0
#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace holdfast::parallel {
namespace {

TEST(Mesh, PutsTensorParallelRanksSideBySide) {
  const auto mesh = Mesh::Create(2, 3, 4, 6);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->dp_index(), 1);
  EXPECT_EQ(mesh->tp_index(), 1);
  EXPECT_EQ(mesh->TpGroup(), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(mesh->DpGroup(), (std::vector<int>{1, 4}));
}

TEST(Mesh, GroupsOfAnAxisPartTheRanksAndPlaceEachAtItsCoordinate) {
  for (const auto& [dp, tp] :
       {std::pair{1, 1}, std::pair{4, 2}, std::pair{3, 5}, std::pair{1, 7}}) {
    std::set<std::vector<int>> dp_groups, tp_groups;
    for (int rank = 0; rank < dp * tp; ++rank) {
      const auto mesh = Mesh::Create(dp, tp, rank, dp * tp);
      ASSERT_TRUE(mesh.ok());
      EXPECT_EQ(mesh->DpGroup()[mesh->dp_index()], rank);
      EXPECT_EQ(mesh->TpGroup()[mesh->tp_index()], rank);
      dp_groups.insert(mesh->DpGroup());
      tp_groups.insert(mesh->TpGroup());
    }
    std::map<int, int> seen;
    for (const auto& group : dp_groups) {
      for (const int rank : group) ++seen[rank];
    }
    for (const auto& group : tp_groups) {
      for (const int rank : group) ++seen[rank];
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(dp * tp));
    for (const auto& [rank, times] : seen) EXPECT_EQ(times, 2) << rank;
  }
}

TEST(Mesh, RefusesWhatDoesNotMakeTheRanks) {
  EXPECT_FALSE(Mesh::Create(2, 2, 0, 3).ok());
  EXPECT_FALSE(Mesh::Create(0, 2, 0, 0).ok());
  EXPECT_FALSE(Mesh::Create(2, 2, 4, 4).ok());
  EXPECT_NE(Mesh::Create(2, 2, 0, 3).status().message().find("3"), absl::string_view::npos);
}

}  // namespace
}  // namespace holdfast::parallel
