// SPDX-License-Identifier: Apache-2.0
// Jobs of commands that know nothing of Holdfast: what their ends mean when no step can be seen.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kStoreEnd[] =
    "the rendezvous store of attempt 1 on n0 (holdfast-tcp-store) ended before its ranks: signal 9";

class EngineCommand : public ::testing::Test {
 protected:
  EngineCommand() { cluster_.node("n0").hello = cluster_.node("n1").hello = false; }

  void LoseStore(uint64_t job) {
    v1::ReportEventsRequest request = cluster_.node("n0").Request();
    auto* event = request.add_events();
    event->set_kind(v1::RankEvent::KIND_STORE_DIED);
    event->mutable_rank()->set_job(job);
    event->mutable_rank()->set_attempt(1);
    event->set_detail(kStoreEnd);
    cluster_.Report(cluster_.node("n0"), request);
    cluster_.Pump();
  }

  FakeCluster cluster_;
};

TEST_F(EngineCommand, ALostStoreDisturbsNobodyButIsBlamedForWhatEndsAfterIt) {
  const uint64_t job = cluster_.Submit(CommandSpec());
  cluster_.Advance(1'000);
  LoseStore(job);
  cluster_.Advance(2'000);
  EXPECT_EQ(cluster_.StateOf(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster_.Job(job).attempt(), 1u);
  cluster_.Exit(job, 2, 1, "ConnectionResetError");
  cluster_.Pump();
  EXPECT_EQ(cluster_.Job(job).attempt(), 2u);
  const v1::Incident incident = cluster_.LastIncident(job);
  EXPECT_EQ(incident.fault_class(), v1::PROCESS_DIED);
  EXPECT_THAT(incident.ranks(), IsEmpty());
  EXPECT_THAT(incident.victims(), ElementsAre(2));
  EXPECT_THAT(incident.what(), HasSubstr(kStoreEnd));
}

TEST_F(EngineCommand, TheStoreOfAnEarlierAttemptIsNoExcuse) {
  const uint64_t job = cluster_.Submit(CommandSpec());
  cluster_.Advance(1'000);
  LoseStore(job);
  cluster_.Exit(job, 2, 1);
  cluster_.Pump();
  cluster_.Exit(job, 1, 1);
  cluster_.Pump();
  EXPECT_THAT(cluster_.LastIncident(job).ranks(), ElementsAre(1));
}

TEST_F(EngineCommand, AKillIsNotTheStoresFault) {
  const uint64_t job = cluster_.Submit(CommandSpec());
  cluster_.Advance(1'000);
  LoseStore(job);
  cluster_.Exit(job, 3, -9);
  cluster_.Pump();
  EXPECT_THAT(cluster_.LastIncident(job).ranks(), ElementsAre(3));
}

TEST_F(EngineCommand, WhatEndsAfterAMinuteIsNoMistypedImport) {
  const uint64_t job = cluster_.Submit(CommandSpec());
  for (const int64_t ms : {61'000, 200'000, 90'000}) {
    cluster_.Advance(ms);
    cluster_.Exit(job, 0, 1);
    cluster_.Pump();
    cluster_.Advance(3'000);  // the back-off of the third
    EXPECT_EQ(cluster_.StateOf(job), v1::JOB_STATE_RUNNING) << cluster_.Job(job).reason();
    EXPECT_EQ(cluster_.LastIncident(job).fault_class(), v1::PROCESS_DIED);
  }
}

}  // namespace
}  // namespace holdfast::sched
