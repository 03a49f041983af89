// SPDX-License-Identifier: Apache-2.0
#include "agent/core/activity_model.h"

#include "base/clock.h"
#include "gtest/gtest.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kLookMs = 500;

class ActivityModelTest : public ::testing::Test {
 protected:
  // Looks each half second for `ms`; what is true moves in each.
  void Pass(int64_t ms, bool works, bool prints = false, bool steps = false) {
    for (int64_t done = 0; done < ms; done += kLookMs) {
      now_ns_ += kLookMs * kNsPerMs;
      look_.cpu_ms += works ? 400 : 1;
      look_.output += prints ? 1 : 0;
      look_.step += steps ? 1 : 0;
      model_.Look(look_, now_ns_);
    }
  }
  std::optional<Difference> Differs() const { return model_.Differs(now_ns_); }

  ActivityModel model_;
  ActivityLook look_;
  int64_t now_ns_ = 1'000 * kNsPerSec;
};

TEST_F(ActivityModelTest, NothingIsSaidBeforeEnoughWasSeen) {
  Pass(9'000, true);
  Pass(60'000, false);
  EXPECT_FALSE(Differs().has_value());
}

TEST_F(ActivityModelTest, ARankThatAlwaysWorkedAndNowDoesNotDiffersAfterTheFloor) {
  Pass(30'000, true);
  Pass(kQuietFloorMs, false);
  EXPECT_FALSE(Differs().has_value());
  Pass(kLookMs, false);
  ASSERT_TRUE(Differs().has_value());
  EXPECT_EQ(Differs()->signal, "work");
  EXPECT_EQ(Differs()->limit_ms, kQuietFloorMs);
  EXPECT_EQ(Differs()->lasted_ms, kQuietFloorMs + kLookMs);
  EXPECT_GT(Differs()->confidence, 0.98);
  Pass(kLookMs, true);
  EXPECT_FALSE(Differs().has_value()) << "it goes on";
}

TEST_F(ActivityModelTest, PausesItIsKnownToMakeAreNoDifference) {
  for (int i = 0; i < 10; ++i) {
    Pass(5'000, true);
    Pass(20'000, false);  // an evaluation elsewhere, say
  }
  Pass(25'000, false);
  EXPECT_FALSE(Differs().has_value());
  Pass(40'000, false);
  ASSERT_TRUE(Differs().has_value());
  EXPECT_GE(Differs()->limit_ms, 30'000);
}

TEST_F(ActivityModelTest, AWaitThatPollsIsNoWork) {
  Pass(30'000, true);
  for (int i = 0; i < 20; ++i) {
    look_.cpu_ms += 10;  // 10 ms of CPU and some bytes in half a second: 2 %
    look_.io_bytes += 100;
    Pass(kLookMs, false);
  }
  ASSERT_TRUE(Differs().has_value());
}

TEST_F(ActivityModelTest, InputAndOutputAreWorkAndSoAreNewProcesses) {
  Pass(30'000, true);
  for (int i = 0; i < 20; ++i) {
    look_.io_bytes += kWorkBytesMin;
    Pass(kLookMs, false);
  }
  EXPECT_FALSE(Differs().has_value());
  for (int i = 0; i < 20; ++i) {
    ++look_.processes;
    Pass(kLookMs, false);
  }
  EXPECT_FALSE(Differs().has_value());
}

TEST_F(ActivityModelTest, OneThatSpinsWithoutItsUsualOutputDiffers) {
  Pass(30'000, true, true);
  Pass(10'000, true, false);
  ASSERT_TRUE(Differs().has_value());
  EXPECT_EQ(Differs()->signal, "output");
}

TEST_F(ActivityModelTest, OneThatSpinsWithoutStepsDiffers) {
  Pass(30'000, true, false, true);
  Pass(10'000, true, false, false);
  ASSERT_TRUE(Differs().has_value());
  EXPECT_EQ(Differs()->signal, "steps");
}

TEST_F(ActivityModelTest, TimeInWhichNobodyLookedIsNoPause) {
  Pass(30'000, true);
  now_ns_ += 60 * kNsPerSec;  // the watcher was stopped, or the whole machine
  Pass(kLookMs, true);
  Pass(5'000, false);
  EXPECT_TRUE(Differs().has_value()) << "the limit is what it was";
  now_ns_ += 60 * kNsPerSec;
  Pass(kLookMs, false);
  ASSERT_TRUE(Differs().has_value()) << "and a hang is a hang still";
  EXPECT_LT(Differs()->lasted_ms, 7'000);
}

TEST_F(ActivityModelTest, ANewProcessStartsAnewButKnowsThePast) {
  Pass(30'000, true);
  Pass(10'000, false);
  ASSERT_TRUE(Differs().has_value());
  model_.NewProcess();
  EXPECT_FALSE(Differs().has_value());
  Pass(60'000, false);
  EXPECT_FALSE(Differs().has_value()) << "it has not moved yet: a start may take its time";
  Pass(1'000, true);
  Pass(5'000, false);
  EXPECT_TRUE(Differs().has_value());
}

}  // namespace
}  // namespace holdfast::agent
