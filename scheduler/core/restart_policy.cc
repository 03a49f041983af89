// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/restart_policy.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace holdfast::sched {
namespace {

// An attempt that starts behind the step where the one before ended is at the same place.
uint64_t CrashStep(const Cause& cause) { return std::max(cause.root.step, cause.root.start_step); }

// What makes two crashes the same: who, how, where. Empty when the fault came from outside and says
// nothing about the program.
std::string CrashKey(const Cause& cause) {
  const uint64_t step = CrashStep(cause);
  if (cause.fault_class == v1::OUT_OF_MEMORY) return absl::StrCat("oom@", step);
  if (!cause.own_program) return "";
  return absl::StrCat(static_cast<int>(cause.root.kind), ":", cause.root.exit_code, "@", step);
}

RestartDecision Refuse(std::string reason) {
  RestartDecision d;
  d.reason = std::move(reason);
  return d;
}

bool AboutTheSameTime(int64_t a_ms, int64_t b_ms) {
  return std::abs(a_ms - b_ms) <= std::max(kSameTimeMs, std::max(a_ms, b_ms) / 5);
}

// How many times in a row the program has come to this end.
uint32_t CountCrash(const Cause& cause, int64_t active_ms, records::RestartBook* book) {
  const std::string key = CrashKey(cause);
  if (key.empty()) return 0;
  const bool same = key == book->crash_key() &&
                    (cause.root.has_marks || AboutTheSameTime(active_ms, book->crash_active_ms()));
  book->set_crash_key(key);
  book->set_crash_step(CrashStep(cause));
  book->set_crash_active_ms(active_ms);
  book->set_crash_count(same ? book->crash_count() + 1 : 1);
  return book->crash_count();
}

// A reason only when the fault is the program's and it has had its retries.
RestartDecision BlameProgram(const Cause& cause, uint32_t crashes, records::RestartBook* book) {
  const bool seen = cause.root.has_marks;
  if (cause.fault_class == v1::USER_PROGRAM) {
    book->set_user_failures(book->user_failures() + 1);
    if (book->user_failures() > kUserProgramRetries) {
      return Refuse(absl::StrCat("user program: ", cause.what, "; it failed ",
                                 book->user_failures(), " times ",
                                 seen ? "before its first step" : "soon after its start"));
    }
  }
  if (crashes < (seen ? kSameCrashMax : kSameCrashUnseenMax)) return {};
  const bool memory = cause.fault_class == v1::OUT_OF_MEMORY;
  RestartDecision refused = Refuse(absl::StrCat(
      memory ? "out of memory" : "user program, recurring", ": ", cause.what, "; the same end ",
      crashes, " times ", seen ? "without progress" : "after about the same time"));
  refused.blames_program = !memory;
  return refused;
}

}  // namespace

uint32_t RestartsMax(const v1::JobSpec& spec) {
  return spec.has_restarts_max() ? spec.restarts_max() : kRestartsMaxDefault;
}

int64_t BackoffMs(uint32_t faults) {
  if (faults <= kFreeRestarts) return 0;
  const uint32_t doublings = std::min(faults - kFreeRestarts - 1, 16u);
  return std::min(kBackoffMaxMs, kBackoffFirstMs << doublings);
}

bool NoteProgress(const Progress& progress, records::RestartBook* book) {
  const bool newer = progress.newest_point_step > book->best_point_step();
  const bool active = !progress.points_visible && progress.active_ms >= kActivityIsProgressMs;
  if (newer) book->set_best_point_step(progress.newest_point_step);
  if (!newer && !active) return false;
  book->set_used(0);
  book->set_faults_without_progress(0);
  book->set_user_failures(0);
  // A point that came late, up to the step of the crash, is no way past it.
  if (active || progress.newest_point_step > book->crash_step()) {
    book->clear_crash_key();
    book->set_crash_count(0);
  }
  return true;
}

RestartDecision DecideRestart(const v1::JobSpec& spec, const Cause& cause, int64_t active_ms,
                              records::RestartBook* book) {
  book->set_faults_without_progress(book->faults_without_progress() + 1);
  const uint32_t crashes = CountCrash(cause, active_ms, book);
  if (!spec.program_restarts()) {
    RestartDecision refused = BlameProgram(cause, crashes, book);
    if (!refused.reason.empty()) return refused;
  }
  if (book->used() >= RestartsMax(spec)) {
    return Refuse(absl::StrCat("restart budget used up (restarts_max ", RestartsMax(spec),
                               "): ", cause.what));
  }
  book->set_used(book->used() + 1);
  RestartDecision d;
  d.restart = true;
  d.backoff_ms = BackoffMs(book->faults_without_progress());
  d.reason =
      absl::StrCat("restart ", book->used(), " of ", RestartsMax(spec), " after: ", cause.what);
  return d;
}

}  // namespace holdfast::sched
