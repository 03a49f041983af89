// SPDX-License-Identifier: Apache-2.0
#include "proto/fence.h"

#include "gtest/gtest.h"

namespace holdfast::proto {
namespace {

TEST(Fence, DefaultsFollowTheKindOfJob) {
  v1::JobSpec spec;
  spec.add_command("./train");
  EXPECT_EQ(EffectiveFence(spec), v1::FENCE_MODE_WITNESS);
  spec.clear_command();
  spec.set_trainer_config("a.yaml");
  EXPECT_EQ(EffectiveFence(spec), v1::FENCE_MODE_COMMIT);
  spec.set_fence(v1::FENCE_MODE_WITNESS);
  EXPECT_EQ(EffectiveFence(spec), v1::FENCE_MODE_WITNESS);
}

}  // namespace
}  // namespace holdfast::proto
