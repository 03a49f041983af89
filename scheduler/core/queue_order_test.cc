// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/queue_order.h"

#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

TEST(QueueOrder, RecoveringThenPriorityThenFirstCome) {
  std::vector<QueueEntry> q = {
      {1, 0, false}, {2, 5, false}, {3, 5, false}, {4, -1, true}, {5, 9, true}};
  SortQueue(&q);
  std::vector<uint64_t> ids;
  for (const auto& e : q) ids.push_back(e.job);
  EXPECT_EQ(ids, (std::vector<uint64_t>{5, 4, 2, 3, 1}));
}

TEST(QueueOrder, OnlyAJobThatCanFitBlocksThoseBehind) {
  EXPECT_TRUE(BlocksThoseBehind(false, true, true, 0));
  EXPECT_FALSE(BlocksThoseBehind(false, false, true, 0));
  EXPECT_TRUE(BlocksThoseBehind(true, false, true, 0));
  EXPECT_TRUE(BlocksThoseBehind(true, false, true, kRecoveringHoldMs - 1));
  EXPECT_FALSE(BlocksThoseBehind(true, false, true, kRecoveringHoldMs));
  EXPECT_FALSE(BlocksThoseBehind(true, false, false, 0));
}

}  // namespace
}  // namespace holdfast::sched
