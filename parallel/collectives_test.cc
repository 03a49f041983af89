// SPDX-License-Identifier: Apache-2.0
#include "parallel/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace holdfast::parallel {
namespace {

// Runs `body` on each rank of a dp x tp mesh, as threads.
void OnRanks(int dp, int tp, int64_t timeout_ms,
             const std::function<void(const Mesh&, Groups&)>& body) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < dp * tp; ++rank) {
    threads.emplace_back([&, rank] {
      const auto mesh = Mesh::Create(dp, tp, rank, dp * tp);
      auto groups = ConnectGroups(*mesh, store, {.timeout_ms = timeout_ms, .prefix = "t"});
      ASSERT_TRUE(groups.ok()) << groups.status();
      body(*mesh, *groups);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AllReduce, SumsOverTheGroupOfItsAxisOnly) {
  OnRanks(2, 2, 60'000, [](const Mesh& mesh, Groups& groups) {
    at::Tensor world = at::full({3}, 1 << mesh.rank(), at::kDouble), dp = world.clone(),
               tp = world.clone(), top = world.clone();
    groups.world->AllReduce(world, Reduce::kSum);
    groups.dp->AllReduce(dp, Reduce::kSum);
    groups.tp->AllReduce(tp, Reduce::kSum);
    groups.world->AllReduce(top, Reduce::kMax);
    EXPECT_EQ(world[2].item<double>(), 15);
    EXPECT_EQ(dp[0].item<double>(), mesh.tp_index() == 0 ? 1 + 4 : 2 + 8);
    EXPECT_EQ(tp[1].item<double>(), mesh.dp_index() == 0 ? 1 + 2 : 4 + 8);
    EXPECT_EQ(top[0].item<double>(), 8);
  });
}

TEST(AllReduce, RefusesWhatGlooWouldCorrupt) {
  OnRanks(2, 1, 60'000, [](const Mesh&, Groups& groups) {
    at::Tensor slice = at::ones({4, 8}).narrow(1, 0, 4), half = at::ones({4}, at::kHalf),
               right = at::ones({4});
    const absl::Status not_contiguous =
        Guard("test", [&] { groups.dp->AllReduce(slice, Reduce::kSum); });
    EXPECT_EQ(not_contiguous.code(), absl::StatusCode::kInternal);
    EXPECT_NE(not_contiguous.message().find("contiguous"), absl::string_view::npos)
        << not_contiguous;
    EXPECT_FALSE(Guard("test", [&] { groups.dp->AllReduce(half, Reduce::kSum); }).ok());
    EXPECT_EQ(slice.sum().item<float>(), 16);  // untouched
    EXPECT_TRUE(Guard("test", [&] { groups.dp->AllReduce(right, Reduce::kSum); }).ok());
    EXPECT_EQ(right[3].item<float>(), 2);
  });
}

TEST(AllReduce, APeerThatIsGoneIsUnavailable) {
  OnRanks(2, 1, 3'000, [](const Mesh& mesh, Groups& groups) {
    at::Tensor tensor = at::ones({4});
    if (mesh.rank() == 1) return;  // its group is destroyed: the connection closes
    const absl::Status status =
        Guard("step 7", [&] { groups.dp->AllReduce(tensor, Reduce::kSum); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("step 7"), absl::string_view::npos) << status;
  });
}

TEST(Connect, ManyRanksNeedAStore) {
  const auto mesh = Mesh::Create(2, 1, 0, 2);
  EXPECT_EQ(ConnectGroups(*mesh, nullptr, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto alone = Mesh::Create(1, 1, 0, 1);
  const auto groups = ConnectGroups(*alone, nullptr, {});
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->tp->size(), 1);
}

TEST(Connect, TheLocalAddressOfALocalMasterIsLoopback) {
  EXPECT_EQ(LocalAddressTowards(""), "127.0.0.1");
  EXPECT_EQ(LocalAddressTowards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(LocalAddressTowards("localhost"), "127.0.0.1");
}

}  // namespace
}  // namespace holdfast::parallel
