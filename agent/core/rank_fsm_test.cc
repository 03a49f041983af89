// SPDX-License-Identifier: Apache-2.0
#include "agent/core/rank_fsm.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kMs = kNsPerMs;
constexpr uint64_t kKilled = (uint64_t{CLD_KILLED} << 32) | SIGKILL;
constexpr int64_t kGraceNs = kStoppedRankGraceMs * kNsPerMs;

TEST(RankFsm, ExitCodes) {
  EXPECT_EQ(ExitCodeFromWait((uint64_t{CLD_EXITED} << 32) | 3), 3);
  EXPECT_EQ(ExitCodeFromWait(kKilled), -SIGKILL);
  EXPECT_EQ(ExitCodeFromWait((uint64_t{CLD_DUMPED} << 32) | SIGSEGV), -SIGSEGV);
}

TEST(RankFsm, AStopAndContinueWithinTheGraceIsHealthy) {
  RankFsm fsm;
  ASSERT_EQ(fsm.Started(0).size(), 1u);
  EXPECT_TRUE(fsm.Stopped(1000 * kMs).empty());
  EXPECT_TRUE(fsm.Tick(1300 * kMs, false).empty());
  EXPECT_TRUE(fsm.Continued(1300 * kMs).empty());
  EXPECT_EQ(fsm.PendingStopAtNs(), 0);
  EXPECT_TRUE(fsm.Tick(5000 * kMs, false).empty());
  EXPECT_EQ(fsm.phase(), RankPhase::kRunning);
}

TEST(RankFsm, ALongStopIsReportedWithTheTimeItBegan) {
  RankFsm fsm;
  fsm.Started(0);
  fsm.Stopped(1000 * kMs);
  EXPECT_EQ(fsm.PendingStopAtNs(), 1000 * kMs + kGraceNs);
  const std::vector<RankEdge> edges = fsm.Tick(1000 * kMs + kGraceNs, false);
  ASSERT_EQ(edges.size(), 1u);
  EXPECT_EQ(edges[0].kind, RankEdge::kStopped);
  EXPECT_EQ(edges[0].at_ns, 1000 * kMs);
  EXPECT_EQ(fsm.cause(), StopCause::kSignal);
  EXPECT_TRUE(fsm.Alive());
  EXPECT_TRUE(fsm.Tick(9000 * kMs, false).empty()) << "told once";
  const std::vector<RankEdge> resumed = fsm.Continued(9500 * kMs);
  ASSERT_EQ(resumed.size(), 1u);
  EXPECT_EQ(resumed[0].kind, RankEdge::kContinued);
}

TEST(RankFsm, ADebuggersStopIsNoFault) {
  RankFsm fsm;
  fsm.Started(0);
  fsm.Stopped(1000 * kMs);
  EXPECT_TRUE(fsm.Tick(60'000 * kMs, true).empty());
  EXPECT_EQ(fsm.phase(), RankPhase::kRunning);
}

TEST(RankFsm, AFrozenCgroupCountsAsStopped) {
  RankFsm fsm;
  fsm.Started(0);
  fsm.FrozenSeen(true, 1000 * kMs);
  fsm.FrozenSeen(true, 1200 * kMs);
  const std::vector<RankEdge> edges = fsm.Tick(1000 * kMs + kGraceNs, false);
  ASSERT_EQ(edges.size(), 1u);
  EXPECT_EQ(edges[0].at_ns, 1000 * kMs);
  EXPECT_EQ(fsm.cause(), StopCause::kFrozen);
  EXPECT_EQ(fsm.FrozenSeen(false, 3000 * kMs).size(), 1u);
}

TEST(RankFsm, NothingAfterTheEnd) {
  RankFsm fsm;
  fsm.Started(0);
  ASSERT_EQ(fsm.Exited(kKilled, 5 * kMs).size(), 1u);
  EXPECT_EQ(fsm.exit_code(), -SIGKILL);
  EXPECT_TRUE(fsm.Exited(0, 6 * kMs).empty());
  EXPECT_TRUE(fsm.Started(7 * kMs).empty());
  EXPECT_TRUE(fsm.StartFailed(7 * kMs).empty());
  fsm.Stopped(8 * kMs);
  EXPECT_TRUE(fsm.Tick(9000 * kMs, false).empty());
  EXPECT_EQ(fsm.exit_ns(), 5 * kMs);
}

TEST(RankFsm, RandomWalksKeepTheRules) {
  std::minstd_rand random(7);
  for (int walk = 0; walk < 2000; ++walk) {
    RankFsm fsm;
    int started = 0, ended = 0, stopped = 0, continued = 0;
    int64_t now = 0;
    for (int i = 0; i < 40; ++i) {
      now += static_cast<int64_t>(random() % 300) * kMs;
      std::vector<RankEdge> edges;
      switch (random() % 7) {
        case 0:
          edges = fsm.Started(now);
          break;
        case 1:
          edges = fsm.Stopped(now);
          break;
        case 2:
          edges = fsm.Continued(now);
          break;
        case 3:
          edges = fsm.FrozenSeen(random() % 2 == 0, now);
          break;
        case 4:
          edges = fsm.Tick(now, false);
          break;
        case 5:
          edges = random() % 20 == 0 ? fsm.Exited(kKilled, now) : std::vector<RankEdge>();
          break;
        default:
          edges = random() % 40 == 0 ? fsm.StartFailed(now) : std::vector<RankEdge>();
          break;
      }
      for (const RankEdge& edge : edges) {
        ASSERT_EQ(ended, 0) << "an edge after the end";
        ASSERT_LE(edge.at_ns, now);
        started += edge.kind == RankEdge::kStarted;
        stopped += edge.kind == RankEdge::kStopped;
        continued += edge.kind == RankEdge::kContinued;
        ended += edge.kind == RankEdge::kExited || edge.kind == RankEdge::kStartFailed;
      }
      ASSERT_LE(started, 1);
      ASSERT_LE(ended, 1);
      ASSERT_TRUE(stopped == continued || stopped == continued + 1);
    }
  }
}

}  // namespace
}  // namespace holdfast::agent
