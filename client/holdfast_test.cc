// SPDX-License-Identifier: Apache-2.0
// The C library as a program sees it that was not started by Holdfast. (With a keeper: tests/rank.)
#include "client/holdfast.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace {

TEST(HoldfastTest, DetachedCallsAreHarmless) {
  unsetenv("HOLDFAST_SOCKET");
  hf_session* hf = nullptr;
  ASSERT_EQ(hf_init(&hf, 1000), 0);
  ASSERT_NE(hf, nullptr);
  EXPECT_EQ(hf_detached(hf), 1);
  EXPECT_EQ(hf_world_size(hf), 1u);
  EXPECT_EQ(hf_attempt_is_current(hf), 1);
  hf_enter_phase(hf, 6, 1, 0);
  hf_enter_phase(hf, 4711, 1, 0);
  const hf_step step = {1, 8, 2.5, 1.0, 1e-3, 100.0};
  hf_finish_step(hf, &step);
  float weights[4] = {};
  const uint64_t shape[] = {4}, offset[] = {0};
  const hf_tensor tensor = {"w", 1, 1, shape, offset, shape, 0, weights, sizeof(weights)};
  EXPECT_EQ(hf_prepare_snapshots(hf, &tensor, 1, 2), 0);
  EXPECT_EQ(hf_snapshot(hf, &tensor, 1, 1, 8, 1, nullptr), 0);
  uint32_t group = 7;
  const uint32_t ranks[] = {0, 1};
  EXPECT_EQ(hf_records_collectives(hf), 0);
  EXPECT_EQ(hf_group(hf, "g", ranks, 2, &group), 0);
  EXPECT_EQ(group, 0u);
  EXPECT_EQ(hf_collective_begin(hf, 1, 1, 1, -1, 4096), 0u);
  hf_collective_end(hf, 0, 1);
  hf_collective_end(hf, uint64_t{1} << 48 | 1, 4711);
  uint64_t samples = 0;
  EXPECT_EQ(hf_restore(hf, &tensor, 1, &samples), ENOENT);
  EXPECT_EQ(hf_store_set(hf, "k", "v", 1), ENOTCONN);
  EXPECT_NE(std::string(hf_last_error()).find("HOLDFAST_SOCKET"), std::string::npos);
  hf_close(hf);
}

TEST(HoldfastTest, AFailureLeavesNoSessionAndSaysWhy) {
  setenv("HOLDFAST_SOCKET", "/no/such/socket", 1);
  setenv("HOLDFAST_ATTEMPT", "1", 1);
  hf_session* hf = nullptr;
  EXPECT_EQ(hf_init(&hf, 1000), ENOENT);
  EXPECT_EQ(hf, nullptr);
  EXPECT_NE(std::string(hf_last_error()).find("/no/such/socket"), std::string::npos);
  unsetenv("HOLDFAST_SOCKET");
}

}  // namespace
