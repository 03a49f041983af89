// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/placement.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

using ::testing::HasSubstr;

PlacementNode Node(const std::string& name, uint32_t devices, uint32_t free, bool ready = true) {
  PlacementNode node;
  node.name = name;
  node.ready = ready;
  node.why_not = ready ? "" : "LOST";
  node.devices = devices;
  for (uint32_t i = devices - free; i < devices; ++i)
    node.free.push_back({absl::StrCat(name, "-gpu", i), i});
  return node;
}

TEST(Placement, SaysWhatIsMissingAndWhatWouldFit) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 8, .preferred = {}};
  const PlacementResult result =
      Place(request, {Node("n0", 8, 4), Node("n1", 8, 8), Node("n2", 8, 8, false)});
  EXPECT_FALSE(result.placed);
  EXPECT_THAT(
      result.reason,
      HasSubstr("needs 2 node(s) x 8 GPU(s); n0 has 4 of 8 free, n1 has 8 of 8 free, n2 is LOST"));
  EXPECT_THAT(result.reason, HasSubstr("now fits: 2 node(s) x 4 GPU(s) or 1 node(s) x 8 GPU(s)"));
  EXPECT_THAT(Place(request, {}).reason, HasSubstr("no node is registered"));
}

TEST(Placement, PacksTightlyAndKeepsRanksContiguous) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 2, .preferred = {}};
  const PlacementResult result =
      Place(request, {Node("a", 8, 8), Node("b", 8, 2), Node("c", 4, 3)});
  ASSERT_TRUE(result.placed) << result.reason;
  ASSERT_EQ(result.placement.nodes_size(), 2);
  EXPECT_EQ(result.placement.nodes(0).node(), "b");
  EXPECT_EQ(result.placement.nodes(1).node(), "c");
  EXPECT_EQ(result.placement.nodes(1).ranks(1).rank(), 3u);
  EXPECT_EQ(result.placement.nodes(1).ranks(1).local_rank(), 1u);
  EXPECT_EQ(result.placement.nodes(0).ranks(0).device_id(), "b-gpu6");
  EXPECT_EQ(result.placement.nodes(0).ranks(0).device_index(), 6u);
}

TEST(Placement, OldNodesKeepTheirPlaceAndASpareTakesTheLostOnes) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 2, .preferred = {"n1", "n0"}};
  const PlacementResult both =
      Place(request, {Node("n0", 2, 2), Node("n1", 2, 2), Node("n2", 2, 2)});
  ASSERT_TRUE(both.placed);
  EXPECT_EQ(both.placement.nodes(0).node(), "n1");
  EXPECT_EQ(both.placement.nodes(1).node(), "n0");
  const PlacementResult one =
      Place(request, {Node("n0", 2, 2), Node("n1", 2, 2, false), Node("n2", 2, 2)});
  ASSERT_TRUE(one.placed);
  EXPECT_EQ(one.placement.nodes(0).node(), "n2");
  EXPECT_EQ(one.placement.nodes(1).node(), "n0");
}

TEST(Placement, WithoutDevicesOneRankOnANode) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 0, .preferred = {}};
  const PlacementResult result = Place(request, {Node("n0", 0, 0), Node("n1", 0, 0)});
  ASSERT_TRUE(result.placed);
  EXPECT_EQ(result.placement.nodes(1).ranks_size(), 1);
  EXPECT_EQ(result.placement.nodes(1).ranks(0).device_id(), "");
  PlacementNode full = Node("n1", 0, 0);
  full.ranks_placed = 64;
  EXPECT_FALSE(Place(request, {Node("n0", 0, 0), full}).placed);
}

TEST(Placement, WithoutDevicesAsManyRanksOnANodeAsAreAskedFor) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 0, .ranks_per_node = 3, .preferred = {}};
  const PlacementResult result = Place(request, {Node("a", 0, 0), Node("b", 8, 8)});
  ASSERT_TRUE(result.placed) << result.reason;
  ASSERT_EQ(result.placement.nodes(1).ranks_size(), 3);
  EXPECT_EQ(result.placement.nodes(1).ranks(2).rank(), 5u);
  EXPECT_EQ(result.placement.nodes(1).ranks(2).local_rank(), 2u);
  EXPECT_EQ(result.placement.nodes(1).ranks(2).device_id(), "");
  PlacementNode full = Node("c", 0, 0);
  full.ranks_placed = static_cast<uint32_t>(kRanksPerNodeMax) - 2;
  const PlacementResult none = Place(request, {Node("a", 0, 0), full});
  EXPECT_FALSE(none.placed);
  EXPECT_THAT(none.reason, HasSubstr("needs 2 node(s) x 3 rank(s) of at most 64"));
  EXPECT_THAT(none.reason, HasSubstr("c runs 62 rank(s)"));
}

TEST(Placement, CouldEverFitLooksAtAllDevices) {
  PlacementRequest request{.nodes = 2, .gpus_per_node = 4, .preferred = {}};
  EXPECT_TRUE(CouldEverFit(request, {Node("a", 4, 0), Node("b", 4, 0)}, false));
  EXPECT_FALSE(CouldEverFit(request, {Node("a", 4, 4), Node("b", 4, 4, false)}, false));
  EXPECT_TRUE(CouldEverFit(request, {Node("a", 4, 4), Node("b", 4, 4, false)}, true));
  EXPECT_FALSE(CouldEverFit(request, {Node("a", 4, 4), Node("b", 3, 3)}, true));
}

// Brute force: a gang is placed exactly when some subset of nodes can hold it, never twice on a
// device, never where it may not.
TEST(Placement, AgreesWithBruteForceOnSmallClusters) {
  std::mt19937 random(7);
  int placed = 0, refused = 0;
  for (int round = 0; round < 5000; ++round) {
    const int count = 1 + static_cast<int>(random() % 5);
    std::vector<PlacementNode> nodes;
    for (int i = 0; i < count; ++i) {
      const uint32_t devices = random() % 5;
      nodes.push_back(Node(absl::StrCat("n", i), devices,
                           devices == 0 ? 0 : random() % (devices + 1), random() % 4 != 0));
    }
    PlacementRequest request{.nodes = 1 + static_cast<uint32_t>(random() % 4),
                             .gpus_per_node = 1 + static_cast<uint32_t>(random() % 4),
                             .preferred = {"n2", "n0"}};
    bool possible = false;
    for (uint32_t mask = 0; mask < (1u << count); ++mask) {
      if (static_cast<uint32_t>(__builtin_popcount(mask)) != request.nodes) continue;
      bool all = true;
      for (int i = 0; i < count; ++i) {
        if ((mask >> i & 1) && !(nodes[i].ready && nodes[i].free.size() >= request.gpus_per_node))
          all = false;
      }
      possible |= all;
    }
    const PlacementResult result = Place(request, nodes);
    ASSERT_EQ(result.placed, possible) << round << " " << result.reason;
    (possible ? placed : refused)++;
    if (!possible) {
      ASSERT_FALSE(result.reason.empty());
      continue;
    }
    ASSERT_EQ(static_cast<uint32_t>(result.placement.nodes_size()), request.nodes);
    std::set<std::string> names, devices;
    uint32_t rank = 0;
    for (const auto& node : result.placement.nodes()) {
      ASSERT_TRUE(names.insert(node.node()).second);
      ASSERT_EQ(static_cast<uint32_t>(node.ranks_size()), request.gpus_per_node);
      const PlacementNode& source = nodes[node.node()[1] - '0'];
      ASSERT_TRUE(source.ready);
      for (const auto& r : node.ranks()) {
        ASSERT_EQ(r.rank(), rank++);
        ASSERT_TRUE(devices.insert(r.device_id()).second);
        bool is_free = false;
        for (const auto& d : source.free) is_free |= d.id == r.device_id();
        ASSERT_TRUE(is_free);
      }
    }
  }
  EXPECT_GT(placed, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace holdfast::sched
