// SPDX-License-Identifier: Apache-2.0
#include "agent/core/event_queue.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace holdfast::agent {
namespace {

v1::RankEvent Event(v1::RankEvent::Kind kind, uint32_t rank, uint64_t step = 0) {
  v1::RankEvent event;
  event.set_kind(kind);
  event.mutable_rank()->set_job(1);
  event.mutable_rank()->set_attempt(1);
  event.mutable_rank()->set_rank(rank);
  event.mutable_rank()->set_step(step);
  return event;
}

TEST(EventQueue, AgesAreOfTheMomentOfSending) {
  EventQueue queue;
  queue.PushEvent(Event(v1::RankEvent::KIND_EXITED, 0), 100 * kNsPerMs);
  v1::ReportEventsRequest batch;
  ASSERT_TRUE(queue.MakeBatch(107 * kNsPerMs, &batch));
  EXPECT_EQ(batch.events(0).age_ms(), 7);
  ASSERT_TRUE(queue.MakeBatch(250 * kNsPerMs, &batch));
  EXPECT_EQ(batch.events(0).age_ms(), 150);
  EXPECT_EQ(batch.events(0).age_us(), 150'000);
}

TEST(EventQueue, ABatchKeepsItsSequenceAndContentUntilAcknowledged) {
  EventQueue queue;
  queue.PushEvent(Event(v1::RankEvent::KIND_EXITED, 0), 0);
  v1::ReportEventsRequest first, again;
  ASSERT_TRUE(queue.MakeBatch(0, &first));
  queue.PushEvent(Event(v1::RankEvent::KIND_EXITED, 1), 0);
  ASSERT_TRUE(queue.MakeBatch(0, &again));
  EXPECT_EQ(again.sequence(), first.sequence());
  EXPECT_EQ(again.events_size(), 1);
  queue.Acknowledge(first.sequence() + 5);
  EXPECT_EQ(queue.size(), 2u);
  queue.Acknowledge(first.sequence());
  ASSERT_TRUE(queue.MakeBatch(0, &again));
  EXPECT_EQ(again.sequence(), first.sequence() + 1);
  ASSERT_EQ(again.events_size(), 1);
  EXPECT_EQ(again.events(0).rank().rank(), 1u);
  queue.Acknowledge(again.sequence());
  EXPECT_FALSE(queue.MakeBatch(0, &again));
}

TEST(EventQueue, SealsOfOneRankAreMergedButNotThoseInFlight) {
  EventQueue queue;
  queue.PushEvent(Event(v1::RankEvent::KIND_SEALED, 0, 1), 0);
  v1::ReportEventsRequest batch;
  ASSERT_TRUE(queue.MakeBatch(0, &batch));
  queue.PushEvent(Event(v1::RankEvent::KIND_SEALED, 0, 2), 0);
  queue.PushEvent(Event(v1::RankEvent::KIND_SEALED, 1, 2), 0);
  queue.PushEvent(Event(v1::RankEvent::KIND_SEALED, 0, 3), 0);
  EXPECT_EQ(queue.size(), 3u);
  queue.Acknowledge(batch.sequence());
  ASSERT_TRUE(queue.MakeBatch(0, &batch));
  ASSERT_EQ(batch.events_size(), 2);
  EXPECT_EQ(batch.events(0).rank().step(), 3u);
}

TEST(EventQueue, AtItsLimitItKeepsWhatTheLevelDoesNotTell) {
  EventQueue queue;
  queue.PushEvent(Event(v1::RankEvent::KIND_EXITED, 7), 0);
  v1::PreparedSave save;
  save.set_step(9);
  queue.PushPrepared(save, 0);
  for (size_t i = 0; i < 2 * kQueuedEventsMax; ++i) {
    queue.PushEvent(Event(v1::RankEvent::KIND_STARTED, static_cast<uint32_t>(i)), 0);
  }
  EXPECT_EQ(queue.size(), kQueuedEventsMax);
  EXPECT_EQ(queue.dropped(), kQueuedEventsMax + 2);
  v1::ReportEventsRequest batch;
  ASSERT_TRUE(queue.MakeBatch(0, &batch));
  EXPECT_EQ(batch.events(0).kind(), v1::RankEvent::KIND_EXITED);
  ASSERT_EQ(batch.prepared_size(), 1);
  EXPECT_EQ(batch.prepared(0).step(), 9u);
}

TEST(EventQueue, ALevelTravelsWithItsEventAndEndsTheBatch) {
  EventQueue queue;
  v1::NodeReport level;
  level.add_jobs()->set_job(1);
  queue.PushEvent(Event(v1::RankEvent::KIND_STOP_COMPLETE, 0), 0, level);
  queue.PushEvent(Event(v1::RankEvent::KIND_STARTED, 0), 0);
  v1::ReportEventsRequest batch;
  ASSERT_TRUE(queue.MakeBatch(0, &batch));
  EXPECT_EQ(batch.events_size(), 1);
  EXPECT_EQ(batch.report().jobs(0).job(), 1u);
}

}  // namespace
}  // namespace holdfast::agent
