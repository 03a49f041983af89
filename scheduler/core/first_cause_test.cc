// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/first_cause.h"

#include <csignal>

#include "base/clock.h"
#include "base/rank/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RankFailure Exit(uint32_t rank, int32_t code, int64_t at_ms) {
  RankFailure f;
  f.rank = rank;
  f.node = rank < 2 ? "n0" : "n1";
  f.exit_code = code;
  f.at_mono_ns = at_ms * kNsPerMs;
  f.step = 5;
  return f;
}

RankFailure Of(FailureKind kind, uint32_t rank, int64_t at_ms) {
  RankFailure f = Exit(rank, 0, at_ms);
  f.kind = kind;
  return f;
}

TEST(FirstCause, AKilledRankIsTheCauseAlthoughItsPeersReportFirst) {
  // The peer's exception arrives and even looks 20 ms older than the kill: two agents' ages are not
  // exact.
  const Cause cause =
      NameFirstCause({Exit(3, 1, 980), Exit(1, -SIGKILL, 1000), Exit(0, -SIGABRT, 1100)}, true);
  EXPECT_EQ(cause.fault_class, v1::PROCESS_DIED);
  EXPECT_THAT(cause.ranks, ElementsAre(1));
  EXPECT_THAT(cause.victims, ElementsAre(0, 3));
  EXPECT_EQ(cause.node, "n0");
  EXPECT_THAT(cause.what, HasSubstr("rank 1 on n0 ended with signal 9 (Killed) after step 5"));
  EXPECT_FALSE(cause.own_program);
}

TEST(FirstCause, OfAProgramWithoutMarksNoStepIsClaimed) {
  RankFailure f;
  f.rank = 1;
  f.node = "n0";
  f.exit_code = -SIGKILL;
  EXPECT_THAT(NameFirstCause({f}, true).what, HasSubstr("before its first step of this attempt"));
  f.has_marks = false;
  EXPECT_EQ(NameFirstCause({f}, true).what, "rank 1 on n0 ended with signal 9 (Killed)");
}

TEST(FirstCause, AStrongEndLongAfterTheFirstFailureIsNotItsCause) {
  const Cause cause = NameFirstCause({Exit(0, 3, 1000), Exit(1, -SIGKILL, 2600)}, true);
  EXPECT_THAT(cause.ranks, ElementsAre(0));
  EXPECT_THAT(cause.victims, ElementsAre(1));
}

TEST(FirstCause, WithoutPositiveEvidenceTheEarliestFailureIsTheCause) {
  const Cause cause = NameFirstCause({Exit(2, 1, 1005), Exit(1, 1, 1000)}, true);
  EXPECT_THAT(cause.ranks, ElementsAre(1));
  EXPECT_EQ(cause.fault_class, v1::PROCESS_DIED);
  EXPECT_TRUE(cause.own_program);
}

TEST(FirstCause, WhoSaysThatAPeerWasLostIsAVictim) {
  const Cause cause = NameFirstCause({Exit(2, rank::kExitPeerLost, 1000), Exit(1, 1, 1005)}, true);
  EXPECT_THAT(cause.ranks, ElementsAre(1));
  EXPECT_THAT(cause.victims, ElementsAre(2));
  const Cause alone = NameFirstCause({Exit(2, rank::kExitPeerLost, 1000)}, false);
  EXPECT_THAT(alone.ranks, ElementsAre(2));
  EXPECT_FALSE(alone.own_program);
}

TEST(FirstCause, TwoFailuresFartherApartThanTheWindowAreBothNamed) {
  const Cause cause = NameFirstCause({Exit(0, -SIGKILL, 1000), Exit(3, -SIGKILL, 3500)}, true);
  EXPECT_THAT(cause.ranks, ElementsAre(0, 3));
  EXPECT_THAT(cause.victims, IsEmpty());
}

TEST(FirstCause, ALostNodeOutranksThePeersThatNoticedItFirst) {
  RankFailure lost2 = Of(FailureKind::kNodeLost, 2, 1600),
              lost3 = Of(FailureKind::kNodeLost, 3, 1600);
  const Cause cause = NameFirstCause({Exit(0, 1, 1000), Exit(1, 1, 1001), lost2, lost3}, true);
  EXPECT_EQ(cause.fault_class, v1::NODE_LOST);
  EXPECT_EQ(cause.node, "n1");
  EXPECT_THAT(cause.ranks, ElementsAre(2, 3));
  EXPECT_THAT(cause.victims, ElementsAre(0, 1));
}

TEST(FirstCause, AKillGoesBeforeALostNodeWhoseTimeIsOnlyAnEstimate) {
  const Cause cause =
      NameFirstCause({Exit(0, -SIGKILL, 1000), Of(FailureKind::kNodeLost, 2, 800)}, true);
  EXPECT_EQ(cause.fault_class, v1::PROCESS_DIED);
  EXPECT_THAT(cause.ranks, ElementsAre(0));
  EXPECT_THAT(cause.victims, IsEmpty()) << "a lost node is nobody's victim";
}

TEST(FirstCause, ADeadKeeperNamesAllRanksOfItsNode) {
  const Cause cause = NameFirstCause(
      {Of(FailureKind::kVanished, 0, 1000), Of(FailureKind::kVanished, 1, 1000), Exit(2, 1, 1010)},
      true);
  EXPECT_EQ(cause.fault_class, v1::PROCESS_DIED);
  EXPECT_THAT(cause.ranks, ElementsAre(0, 1));
  EXPECT_THAT(cause.victims, ElementsAre(2));
}

TEST(FirstCause, EarlyExitZeroIsTheCauseOfItsPeersEnds) {
  const Cause cause = NameFirstCause(
      {Of(FailureKind::kExitedEarly, 2, 1000), Exit(0, 1, 1012), Exit(1, -SIGABRT, 1013)}, true);
  EXPECT_EQ(cause.fault_class, v1::PROCESS_DIED);
  EXPECT_THAT(cause.ranks, ElementsAre(2));
  EXPECT_THAT(cause.what, HasSubstr("exited with 0"));
}

TEST(FirstCause, Classes) {
  RankFailure oom = Exit(0, -SIGKILL, 1);
  oom.oom_killed = true;
  EXPECT_EQ(NameFirstCause({oom}, true).fault_class, v1::OUT_OF_MEMORY);
  EXPECT_EQ(NameFirstCause({oom}, false).fault_class, v1::OUT_OF_MEMORY);
  EXPECT_EQ(NameFirstCause({Of(FailureKind::kStopped, 0, 1)}, true).fault_class,
            v1::PROCESS_STOPPED);
  EXPECT_EQ(NameFirstCause({Exit(0, 1, 1)}, false).fault_class, v1::USER_PROGRAM);
  EXPECT_EQ(NameFirstCause({Exit(0, -SIGSEGV, 1)}, false).fault_class, v1::USER_PROGRAM);
  EXPECT_EQ(NameFirstCause({Exit(0, -SIGKILL, 1)}, false).fault_class, v1::PROCESS_DIED);
  RankFailure no_start = Of(FailureKind::kStartFailed, 0, 1);
  EXPECT_EQ(NameFirstCause({no_start}, true).fault_class, v1::PROCESS_DIED) << "the node's fault";
  EXPECT_FALSE(NameFirstCause({no_start}, false).own_program);
  no_start.start_is_program = true;
  EXPECT_EQ(NameFirstCause({no_start}, true).fault_class, v1::USER_PROGRAM);
  RankFailure damaged = Exit(0, rank::kExitCorrupt, 1);
  damaged.start_step = 5;
  EXPECT_EQ(NameFirstCause({damaged}, true).fault_class, v1::PROCESS_DIED) << "after a step";
  damaged.step = 0;
  EXPECT_EQ(NameFirstCause({damaged}, false).fault_class, v1::CORRUPT_CHECKPOINT);
  EXPECT_FALSE(NameFirstCause({damaged}, false).own_program);
  damaged.start_step = 0;
  EXPECT_EQ(NameFirstCause({damaged}, false).fault_class, v1::USER_PROGRAM);
  RankFailure xid = Exit(0, -SIGKILL, 1);
  xid.device_reason = "Xid 31: MMU fault";
  EXPECT_EQ(NameFirstCause({xid}, true).fault_class, v1::APPLICATION);
  xid.device_reason = "XID 79: fell off the bus";
  EXPECT_EQ(NameFirstCause({xid}, true).fault_class, v1::PROCESS_DIED);
}

TEST(FirstCause, ExitCodes) {
  EXPECT_EQ(DescribeExit(3), "exit code 3");
  EXPECT_EQ(DescribeExit(-9), "signal 9 (Killed)");
  EXPECT_EQ(ShellExitCode(-9), 137);
  EXPECT_EQ(ShellExitCode(3), 3);
}

}  // namespace
}  // namespace holdfast::sched
