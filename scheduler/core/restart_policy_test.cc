// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/restart_policy.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kActiveMs = 3'000;

Cause Died(int32_t code, uint64_t step, bool first_step_ever = true) {
  RankFailure f;
  f.exit_code = code;
  f.step = step;
  f.node = "n0";
  return NameFirstCause({f}, first_step_ever);
}

TEST(RestartPolicy, BackoffOnlyFromTheThirdFault) {
  const int64_t want[] = {0, 0, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
  for (uint32_t i = 0; i < 9; ++i) EXPECT_EQ(BackoffMs(i + 1), want[i]) << i;
  EXPECT_EQ(BackoffMs(4'000'000'000u), kBackoffMaxMs);
}

TEST(RestartPolicy, BudgetIsUsedUpAndComesBackWithProgress) {
  v1::JobSpec spec;
  spec.set_has_restarts_max(true);
  spec.set_restarts_max(2);
  records::RestartBook book;
  EXPECT_TRUE(DecideRestart(spec, Died(-SIGKILL, 1), kActiveMs, &book).restart);
  EXPECT_TRUE(DecideRestart(spec, Died(-SIGKILL, 2), kActiveMs, &book).restart);
  const RestartDecision third = DecideRestart(spec, Died(-SIGKILL, 3), kActiveMs, &book);
  EXPECT_FALSE(third.restart);
  EXPECT_THAT(third.reason, HasSubstr("restarts_max 2"));
  EXPECT_TRUE(NoteProgress({.newest_point_step = 4, .points_visible = true}, &book));
  EXPECT_FALSE(NoteProgress({.newest_point_step = 4, .points_visible = true}, &book))
      << "the same point is no progress";
  const RestartDecision again = DecideRestart(spec, Died(-SIGKILL, 5), kActiveMs, &book);
  EXPECT_TRUE(again.restart);
  EXPECT_EQ(again.backoff_ms, 0);
}

TEST(RestartPolicy, TenMinutesOfActivityCountWhereNoPointIsVisible) {
  records::RestartBook book;
  book.set_used(7);
  EXPECT_FALSE(NoteProgress({.active_ms = kActivityIsProgressMs - 1}, &book));
  EXPECT_FALSE(NoteProgress({.points_visible = true, .active_ms = kActivityIsProgressMs}, &book));
  EXPECT_TRUE(NoteProgress({.active_ms = kActivityIsProgressMs}, &book));
  EXPECT_EQ(book.used(), 0u);
}

TEST(RestartPolicy, ZeroBudgetMeansNoRestart) {
  v1::JobSpec spec;
  spec.set_has_restarts_max(true);
  records::RestartBook book;
  EXPECT_FALSE(DecideRestart(spec, Died(-SIGKILL, 1), kActiveMs, &book).restart);
  v1::JobSpec unset;
  EXPECT_EQ(RestartsMax(unset), 100u);
}

TEST(RestartPolicy, UserProgramGetsOneRetry) {
  v1::JobSpec spec;
  records::RestartBook book;
  EXPECT_TRUE(DecideRestart(spec, Died(1, 0, false), kActiveMs, &book).restart);
  const RestartDecision second = DecideRestart(spec, Died(1, 0, false), kActiveMs, &book);
  EXPECT_FALSE(second.restart);
  EXPECT_THAT(second.reason, HasSubstr("user program"));
}

TEST(RestartPolicy, TheSameCrashAfterARetryIsThePrograms) {
  v1::JobSpec spec;
  records::RestartBook book;
  EXPECT_TRUE(DecideRestart(spec, Died(-SIGSEGV, 7), kActiveMs, &book).restart);
  // The next attempt starts behind step 7 and ends before it finishes another one.
  Cause again = Died(-SIGSEGV, 0);
  again.root.start_step = 7;
  const RestartDecision second = DecideRestart(spec, again, kActiveMs, &book);
  EXPECT_FALSE(second.restart);
  EXPECT_TRUE(second.blames_program);
  EXPECT_THAT(second.reason, HasSubstr("user program, recurring"));
}

TEST(RestartPolicy, ADifferentStepOrProgressBreaksTheSeries) {
  v1::JobSpec spec;
  records::RestartBook book;
  for (int i = 0; i < 12; ++i)
    EXPECT_TRUE(DecideRestart(spec, Died(3, 7 + i % 2), kActiveMs, &book).restart) << i;
  records::RestartBook moving;
  for (uint64_t i = 0; i < 12; ++i) {
    NoteProgress({.newest_point_step = 7 + i, .points_visible = true}, &moving);
    EXPECT_TRUE(DecideRestart(spec, Died(3, 7), kActiveMs, &moving).restart) << i;
  }
}

TEST(RestartPolicy, APointThatCameLateIsNoWayPastTheCrash) {
  v1::JobSpec spec;
  records::RestartBook book;
  NoteProgress({.newest_point_step = 5, .points_visible = true}, &book);
  EXPECT_TRUE(DecideRestart(spec, Died(7, 7), kActiveMs, &book).restart);
  // Its peers had sealed step 6 or 7 when it died, or the next attempt did.
  EXPECT_TRUE(NoteProgress({.newest_point_step = 7, .points_visible = true}, &book));
  EXPECT_EQ(book.used(), 0u) << "the budget comes back all the same";
  EXPECT_FALSE(DecideRestart(spec, Died(7, 7), kActiveMs, &book).restart);
}

TEST(RestartPolicy, KillsFromOutsideAreNeverTheProgramsFault) {
  v1::JobSpec spec;
  records::RestartBook book;
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(DecideRestart(spec, Died(-SIGKILL, 0, false), kActiveMs, &book).restart) << i;
}

TEST(RestartPolicy, RecurringOutOfMemoryEndsTheJob) {
  v1::JobSpec spec;
  records::RestartBook book;
  RankFailure f;
  f.exit_code = -SIGKILL;
  f.oom_killed = true;
  f.step = 3;
  const Cause oom = NameFirstCause({f}, true);
  EXPECT_TRUE(DecideRestart(spec, oom, kActiveMs, &book).restart);
  EXPECT_THAT(DecideRestart(spec, oom, kActiveMs, &book).reason, HasSubstr("out of memory"));
}

Cause DiedUnseen(bool first_step_ever = true) {
  RankFailure f;
  f.exit_code = 1;
  f.has_marks = false;
  return NameFirstCause({f}, first_step_ever);
}

TEST(RestartPolicy, WithoutMarksTheTimeOfTheCrashTellsWhetherItIsTheSame) {
  v1::JobSpec spec;
  records::RestartBook book;
  const int64_t random_ms[] = {80'000, 400'000, 110'000, 70'000, 500'000, 300'000};
  for (const int64_t ms : random_ms)
    EXPECT_TRUE(DecideRestart(spec, DiedUnseen(), ms, &book).restart) << ms;
  records::RestartBook recurring;
  EXPECT_TRUE(DecideRestart(spec, DiedUnseen(), 80'000, &recurring).restart);
  EXPECT_TRUE(DecideRestart(spec, DiedUnseen(), 85'000, &recurring).restart);
  const RestartDecision third = DecideRestart(spec, DiedUnseen(), 79'000, &recurring);
  EXPECT_FALSE(third.restart);
  EXPECT_TRUE(third.blames_program);
  EXPECT_THAT(third.reason, HasSubstr("the same end 3 times after about the same time"));
}

TEST(RestartPolicy, WithoutMarksNobodyClaimsToKnowTheFirstStep) {
  v1::JobSpec spec;
  records::RestartBook book;
  EXPECT_TRUE(DecideRestart(spec, DiedUnseen(false), kActiveMs, &book).restart);
  const RestartDecision second = DecideRestart(spec, DiedUnseen(false), kActiveMs, &book);
  EXPECT_FALSE(second.restart);
  EXPECT_THAT(second.reason, HasSubstr("soon after its start"));
}

TEST(RestartPolicy, WhoCountsProgramRestartsGetsAllOfThem) {
  v1::JobSpec spec;
  spec.set_has_restarts_max(true);
  spec.set_restarts_max(3);
  spec.set_program_restarts(true);
  records::RestartBook book;
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(DecideRestart(spec, Died(1, 0, false), kActiveMs, &book).restart) << i;
  EXPECT_THAT(DecideRestart(spec, Died(1, 0, false), kActiveMs, &book).reason,
              HasSubstr("restarts_max 3"));
}

}  // namespace
}  // namespace holdfast::sched
