// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/live_causes.h"

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kNow = 1'000 * kNsPerSec;

LiveRank Quiet(uint32_t rank, v1::Quiet::WaitsFor waits_for, const std::string& what = "waits") {
  LiveRank out{rank, "n0", 0, v1::Quiet()};
  out.quiet->set_signal("work");
  out.quiet->set_lasted_ms(6'000);
  out.quiet->set_limit_ms(3'000);
  out.quiet->set_pauses_seen(40);
  out.quiet->set_confidence(0.9);
  out.quiet->set_waits_for(waits_for);
  out.quiet->set_what(what);
  return out;
}

LiveRank Busy(uint32_t rank) { return {rank, "n0", 0, std::nullopt}; }

TEST(LiveCauses, ARankThatWaitsForItsLoaderIsNamedAndItsPeersAreNot) {
  const auto cause =
      FindHang({Quiet(0, v1::Quiet::WAITS_FOR_PEER),
                Quiet(1, v1::Quiet::WAITS_FOR_DATA, "waits for its child 7 (python)"),
                Quiet(2, v1::Quiet::WAITS_FOR_UNSPECIFIED)},
               kNow);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->cause, "hang");
  EXPECT_EQ(cause->fault_class, v1::DATA_STUCK);
  EXPECT_THAT(cause->ranks, ElementsAre(1));
  EXPECT_EQ(cause->what, "rank 1 on n0 waits for its child 7 (python)");
  EXPECT_THAT(cause->evidence,
              HasSubstr("no work (CPU, I/O) for 6.0 s; learned limit 3.0 s from 40"));
  EXPECT_DOUBLE_EQ(cause->confidence, 0.9);
  EXPECT_EQ(cause->begin_ns, kNow - 6 * kNsPerSec);
}

TEST(LiveCauses, WhoWaitsForTheNetworkOrTheUnknownIsNeverNamed) {
  EXPECT_FALSE(FindHang({Quiet(0, v1::Quiet::WAITS_FOR_PEER)}, kNow).has_value());
  EXPECT_FALSE(FindHang({Quiet(0, v1::Quiet::WAITS_FOR_PEER),
                         Quiet(1, v1::Quiet::WAITS_FOR_UNSPECIFIED), Busy(2)},
                        kNow)
                   .has_value());
  EXPECT_FALSE(FindHang({Busy(0), Busy(1)}, kNow).has_value());
  EXPECT_FALSE(FindHang({}, kNow).has_value());
}

TEST(LiveCauses, AllThatSleepTogetherAreHealthyButOneThatOthersWaitForIsNot) {
  EXPECT_FALSE(
      FindHang({Quiet(0, v1::Quiet::WAITS_FOR_TIME), Quiet(1, v1::Quiet::WAITS_FOR_TIME)}, kNow)
          .has_value());
  EXPECT_FALSE(FindHang({Quiet(0, v1::Quiet::WAITS_FOR_TIME), Busy(1)}, kNow).has_value());
  const auto cause =
      FindHang({Quiet(0, v1::Quiet::WAITS_FOR_TIME), Quiet(1, v1::Quiet::WAITS_FOR_PEER)}, kNow);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->fault_class, v1::HOST_STUCK);
  EXPECT_THAT(cause->ranks, ElementsAre(0));
}

TEST(LiveCauses, SeveralStuckRanksAreAllNamedWithLessConfidence) {
  const auto cause = FindHang(
      {Quiet(0, v1::Quiet::WAITS_FOR_STORAGE), Quiet(1, v1::Quiet::WAITS_FOR_STORAGE)}, kNow);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->fault_class, v1::IO_STUCK);
  EXPECT_THAT(cause->ranks, ElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(cause->confidence, 0.45);
}

TEST(LiveCauses, AStoppedRankIsCertain) {
  LiveRank stopped = Busy(1);
  stopped.stopped_ns = kNow - 2 * kNsPerSec;
  const auto cause = FindStopped({Quiet(0, v1::Quiet::WAITS_FOR_PEER), stopped});
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->cause, "stopped");
  EXPECT_EQ(cause->fault_class, v1::PROCESS_STOPPED);
  EXPECT_THAT(cause->ranks, ElementsAre(1));
  EXPECT_EQ(cause->begin_ns, kNow - 2 * kNsPerSec);
  EXPECT_FALSE(FindStopped({Busy(0)}).has_value());
}

TEST(LiveCauses, ActingIsDueOnceTheTimeLostExceedsItsCostAndNeverBeforeTheLimit) {
  RestartCost cost;
  cost.attempt_age_ms = 5'000;
  EXPECT_EQ(CostMs(cost), kUnseenWorkMsMin + kRestartMsDefault);
  cost.attempt_age_ms = 3'600'000;
  EXPECT_EQ(CostMs(cost), kUnseenWorkMsMax + kRestartMsDefault);
  cost = {true, 700, 3'600'000, 900};
  EXPECT_EQ(CostMs(cost), 1'600);
  LiveCause cause;
  cause.begin_ns = kNow - 2 * kNsPerSec;
  cause.limit_ms = 3'000;
  EXPECT_FALSE(IsDue(cause, 1'600, kNow)) << "never sooner than the learned limit";
  EXPECT_TRUE(IsDue(cause, 1'600, kNow + kNsPerSec));
  EXPECT_FALSE(IsDue(cause, 30'000, kNow + kNsPerSec));
}

}  // namespace
}  // namespace holdfast::sched
