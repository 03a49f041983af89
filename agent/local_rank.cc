// SPDX-License-Identifier: Apache-2.0
#include "agent/local_rank.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/kept_logs.h"
#include "base/clock.h"

namespace holdfast::agent {
namespace {

v1::RankPhase ToProto(RankPhase phase) {
  switch (phase) {
    case RankPhase::kNone:
      return v1::RANK_PHASE_UNSPECIFIED;
    case RankPhase::kRunning:
      return v1::RANK_PHASE_RUNNING;
    case RankPhase::kStopped:
      return v1::RANK_PHASE_STOPPED;
    case RankPhase::kExited:
      return v1::RANK_PHASE_EXITED;
    case RankPhase::kStartFailed:
      return v1::RANK_PHASE_START_FAILED;
  }
  return v1::RANK_PHASE_UNSPECIFIED;
}

int64_t AgeMs(int64_t now_ns, uint64_t at_ns) {
  return std::max<int64_t>(0, now_ns - static_cast<int64_t>(at_ns)) / kNsPerMs;
}

void AddProgress(const Recorder& recorder, int64_t now_ns, v1::RankReport* out) {
  rank::Progress progress;
  if (recorder.ReadProgress(&progress)) {
    out->set_step(progress.steps_done);
    if (progress.tick > 0)
      out->set_hello(true);  // also of a rank whose hello an earlier agent heard
    out->set_worker_phase(progress.phase);
    if (progress.phase_enter_ns != 0) out->set_phase_age_ms(AgeMs(now_ns, progress.phase_enter_ns));
    if (progress.first_step_done_ns != 0) {
      out->set_first_step(progress.first_step);
      out->set_first_step_age_ms(AgeMs(now_ns, progress.first_step_done_ns));
    }
    rank::StepRecord record;
    if (progress.steps_done != 0 && recorder.ReadStep(progress.steps_done, &record)) {
      out->set_loss(record.loss);
      out->set_has_loss(true);
    }
  }
  char words[rank::kMessageBytes];
  const size_t used = recorder.reader().ReadMessage(words, sizeof words);
  if (used > 0) out->set_message(ToUtf8(std::string(words, used)));
  out->set_snapshots_skipped(recorder.reader().SnapshotsSkipped());
}

}  // namespace

void LocalRank::Begin(uint64_t new_attempt) {
  LocalRank fresh;
  fresh.rank = rank;
  fresh.attempt = new_attempt;
  fresh.arena = std::move(arena);
  *this = std::move(fresh);
}

bool LocalRank::LookFrozen() {
  cgroups = ReadCgroups(pid);
  if (const std::optional<uint64_t> kills = OomKills(cgroups);
      !oom_kills.has_value() && kills.has_value())
    oom_kills = kills;
  return IsFrozen(cgroups);
}

void LocalRank::ClassifyExit() {
  if (fsm.exit_code() != -SIGKILL || !oom_kills.has_value()) return;
  const std::optional<uint64_t> kills = OomKills(cgroups);
  oom_killed = kills.has_value() && *kills > *oom_kills;
}

v1::RankReport LocalRank::Report(uint64_t job, int64_t now_ns) const {
  v1::RankReport out;
  out.set_job(job);
  out.set_attempt(attempt);
  out.set_rank(rank);
  out.set_phase(ToProto(fsm.phase()));
  out.set_pid(static_cast<uint64_t>(pid));
  out.set_hello(hello);
  out.set_exit_code(fsm.exit_code());
  out.set_oom_killed(oom_killed);
  if (fsm.exit_ns() != 0) out.set_exit_age_ms(AgeMs(now_ns, static_cast<uint64_t>(fsm.exit_ns())));
  if (recorder != nullptr) AddProgress(*recorder, now_ns, &out);
  if (!start_error.empty()) out.set_message(start_error);
  out.set_start_is_program(start_is_program);
  if (arena != nullptr) {
    for (const SealedSnapshot& snapshot : arena->Sealed()) {
      v1::SnapshotId* id = out.add_sealed();
      id->set_attempt(snapshot.attempt);
      id->set_step(snapshot.step);
      id->set_persist(snapshot.persist);
      id->set_layout_hash(snapshot.layout_hash);
    }
  }
  return out;
}

std::string DescribeExit(int32_t exit_code) {
  if (exit_code >= 0) return absl::StrCat("exit code ", exit_code);
  const char* name = ::sigdescr_np(-exit_code);
  return absl::StrCat("signal ", -exit_code, " (", name == nullptr ? "unknown" : name, ")");
}

}  // namespace holdfast::agent
