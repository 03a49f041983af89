// SPDX-License-Identifier: Apache-2.0
// The scheduler dies at every single write, before or after the write took effect, and is rebuilt
// from the store. What was acknowledged is there, no attempt is used twice, no two run at once
// (invariants of fake_cluster.h), and the job still ends DONE.
#include <csignal>
#include <functional>
#include <random>

#include "gtest/gtest.h"
#include "scheduler/engine/engine.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {
namespace {

constexpr uint64_t kWritesMax = 200;

// After a death the agents go on by themselves; then a new scheduler comes.
void Revive(FakeCluster& c) {
  if (c.dead()) c.RestartScheduler();
}

// A life with a fault, a lost node and a return, written so that each part can be repeated.
void Live(FakeCluster& c, uint64_t* job) {
  *job = c.Submit(TrainerSpec(), "the-job");
  Revive(c);
  if (*job == 0) *job = c.Submit(TrainerSpec(), "the-job");
  c.Advance(600);
  Revive(c);
  for (const uint64_t step : {1, 2, 3}) {
    c.Finish(*job, step, true, false);
    Revive(c);
  }
  c.Exit(*job, 1, -SIGKILL);
  c.Pump();
  Revive(c);
  c.Advance(1500);
  Revive(c);
  c.Finish(*job, 5, true, true);
  Revive(c);
  if (c.StateOf(*job) == v1::JOB_STATE_RUNNING) c.Prepare(*job, 5);
  Revive(c);
  c.LoseNode("n1", true);
  c.Advance(4000);
  Revive(c);
  c.Advance(4000);
  Revive(c);
  c.ReturnNode("n1", false);
  Revive(c);
  c.Advance(3000);
  Revive(c);
}

void EndWell(FakeCluster& c, uint64_t job) {
  for (int i = 0; i < 10 && c.StateOf(job) != v1::JOB_STATE_RUNNING; ++i) c.Advance(2000);
  ASSERT_EQ(c.StateOf(job), v1::JOB_STATE_RUNNING) << c.Job(job).reason();
  const uint64_t last = 20;
  c.Finish(job, last, true, true);
  Revive(c);
  c.ExitAll(job, 0);
  Revive(c);
  c.Prepare(job, last);
  for (int i = 0; i < 3; ++i) {
    Revive(c);
    c.Advance(1500);
  }
  Revive(c);
  ASSERT_EQ(c.StateOf(job), v1::JOB_STATE_DONE) << c.Job(job).reason() << c.Trace();
  c.Advance(2000);
  EXPECT_TRUE(c.node("n0").jobs.empty());
  for (const v1::ListNodesResponse all = c.engine().ListNodes(c.now());
       const auto& node : all.nodes())
    EXPECT_EQ(node.devices_free(), 2u) << node.name();
}

TEST(EngineCrash, TheSchedulerMayDieAtAnyWrite) {
  uint64_t died = 0;
  for (const bool applied : {false, true}) {
    for (uint64_t write = 1; write <= kWritesMax; ++write) {
      SCOPED_TRACE(testing::Message()
                   << "dies at write " << write << (applied ? ", applied" : ", not applied"));
      FakeCluster c(3, 2);
      c.DieAtWrite(write, applied);
      uint64_t job = 0;
      Live(c, &job);
      if (c.dead()) c.RestartScheduler();
      if (c.engine().epoch() == 1) break;  // the life has fewer writes than that
      ASSERT_NO_FATAL_FAILURE(EndWell(c, job));
      ASSERT_FALSE(testing::Test::HasFailure());
      ++died;
    }
  }
  EXPECT_GT(died, 30u) << "the life is too short to prove anything";
}

TEST(EngineCrash, ASchedulerThatIsAwayDisturbsNobody) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.RestartScheduler();
  EXPECT_EQ(c.StateOf(job), v1::JOB_STATE_RUNNING);
  c.Advance(5000);
  EXPECT_EQ(c.Job(job).attempt(), 1u);
  EXPECT_EQ(c.Job(job).incidents_size(), 0);
  EXPECT_EQ(c.Job(job).step(), 3u) << "levels tell what was missed";
}

TEST(EngineCrash, WhatEndedMeanwhileIsLearnedFromTheLevels) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 3, true, false);
  c.DieAtWrite(1, false);
  c.Exit(job, 1, -SIGKILL);
  ASSERT_TRUE(c.dead());
  c.RestartScheduler();
  c.Advance(1000);
  EXPECT_EQ(c.Job(job).attempt(), 2u);
  EXPECT_EQ(c.StateOf(job), v1::JOB_STATE_RUNNING) << c.Job(job).reason();
  EXPECT_EQ(c.Job(job).start_point().ref().step(), 3u);
}

TEST(EngineCrash, SavesPreparedMeanwhileAreCommittedByTheNextScheduler) {
  FakeCluster c;
  const uint64_t job = c.Submit(TrainerSpec());
  c.Finish(job, 5, true, true);
  const Point point{1, 5};
  for (uint32_t rank = 0; rank < 3; ++rank)
    c.PrepareRank(job, point, rank, FakeManifest(job, point, rank, 4));
  c.DieAtWrite(1, false);
  c.PrepareRank(job, point, 3, FakeManifest(job, point, 3, 4));
  ASSERT_TRUE(c.dead());
  c.RestartScheduler();
  c.Advance(1000);
  EXPECT_EQ(c.Job(job).saves_committed(), 1u);
  EXPECT_GE(c.node("n0").commits_seen[point], 1);
}

// Random lives: whatever happens, the invariants hold and the job can still be brought to its end.
TEST(EngineWalk, RandomLivesKeepTheInvariants) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    FakeCluster c(4, 2);
    std::vector<uint64_t> jobs;
    uint64_t step = 0;
    std::set<std::string> away;
    for (int turn = 0; turn < 60; ++turn) {
      const uint64_t job = jobs.empty() ? 0 : jobs[random() % jobs.size()];
      const auto rank = static_cast<uint32_t>(random() % 4);
      const std::string name = "n" + std::to_string(random() % 4);
      switch (random() % 12) {
        case 0:
          if (jobs.size() < 4)
            jobs.push_back(c.Submit(random() % 2 ? TrainerSpec() : CommandSpec()));
          break;
        case 1:
          if (job != 0) c.Exit(job, rank, random() % 2 ? -SIGKILL : 1);
          break;
        case 2:
          if (job != 0) c.Stop(job, rank);
          break;
        case 3:
          if (away.size() < 2 && away.insert(name).second) c.LoseNode(name, random() % 2 == 0);
          break;
        case 4:
          if (away.erase(name) > 0)
            c.ReturnNode(name, random() % 3 == 0 && !c.node(name).jobs.empty());
          break;
        case 5:
          c.RestartScheduler();
          break;
        case 6:
          if (job != 0 && c.StateOf(job) == v1::JOB_STATE_RUNNING) c.Prepare(job, step);
          break;
        case 7:
          if (job != 0 && random() % 3 == 0 && !IsEnded(c.StateOf(job))) {
            ASSERT_TRUE(c.Cancel(job).ok());
          }
          break;
        case 8:
          c.Advance(static_cast<int64_t>(random() % 4000));
          break;
        default:
          ++step;
          if (job != 0) c.Finish(job, step, true, step % 5 == 0);
          break;
      }
      c.Pump();
      c.Advance(static_cast<int64_t>(random() % 800));
      ASSERT_FALSE(testing::Test::HasFailure()) << "turn " << turn << c.Trace();
    }
    for (const std::string& name : away) c.ReturnNode(name, false);
    c.Advance(45'000);
    for (const uint64_t job : jobs) {
      if (!IsEnded(c.StateOf(job))) {
        ASSERT_TRUE(c.Cancel(job).ok());
      }
    }
    c.Advance(5'000);
    for (const uint64_t job : jobs)
      ASSERT_TRUE(IsEnded(c.StateOf(job)))
          << StateName(c.StateOf(job)) << " " << c.Job(job).reason();
    for (const v1::ListNodesResponse all = c.engine().ListNodes(c.now());
         const auto& node : all.nodes())
      ASSERT_EQ(node.devices_free(), 2u) << node.name() << " " << node.reason();
  }
}

}  // namespace
}  // namespace holdfast::sched
