// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/failures.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/limits.h"
#include "base/rank/recorder.h"
#include "scheduler/engine/live.h"

namespace holdfast::sched {
namespace {

constexpr int kStoppedLevels = 2;  // two levels, or the edge
// A rank that gives up so soon after its rendezvous store is gone gave up because of that.
constexpr int64_t kStoreBlameMs = 10 * 60 * 1000;

std::string DeviceReason(Cycle& c, const records::JobRecord& job, const std::string& node,
                         uint32_t rank) {
  const records::NodeRecord* record = c.txn.FindNode(node);
  const v1::NodePlacement* placed = PlacementOn(job.status().placement(), node);
  if (record == nullptr || placed == nullptr) return "";
  for (const auto& r : placed->ranks()) {
    if (r.rank() != rank) continue;
    for (const auto& device : record->devices()) {
      if (device.id() == r.device_id() && !device.healthy()) return device.reason();
    }
  }
  return "";
}

// What went wrong with one rank before `before_ns`, or nothing.
bool Judge(Cycle& c, const RankFact& f, const std::string& node, int64_t before_ns,
           bool observes_stops, RankFailure* out) {
  out->at_mono_ns = f.ended_ns;
  if (f.vanished && f.ended_ns < before_ns) {
    out->kind = FailureKind::kVanished;
    return true;
  }
  if (f.phase == v1::RANK_PHASE_EXITED && f.ended_ns < before_ns) {
    out->kind = FailureKind::kExit;
    return f.exit_code != 0;
  }
  if (f.phase == v1::RANK_PHASE_START_FAILED && f.ended_ns < before_ns) {
    out->kind = FailureKind::kStartFailed;
    return true;
  }
  if (!observes_stops && f.stopped_levels >= kStoppedLevels &&
      f.stopped_ns < before_ns) {  // also when it was killed meanwhile
    out->kind = FailureKind::kStopped;
    out->at_mono_ns = f.stopped_ns;
    return true;
  }
  if (IsLost(c, node)) {
    out->kind = FailureKind::kNodeLost;
    const auto facts = c.facts.nodes.find(node);
    out->at_mono_ns = facts == c.facts.nodes.end() ? c.now.mono_ns : facts->second.last_beat_ns;
    return out->at_mono_ns <= before_ns;
  }
  return false;
}

// Ranks of a command that lose their store end by an exception of their own.
void BlameStore(const JobFacts& facts, RankFailure* failure) {
  if (facts.store_end.empty() || !IsOwnEnd(*failure)) return;
  const int64_t after_ns = failure->at_mono_ns - facts.store_end_ns;
  if (after_ns < -kNsPerSec || after_ns > kStoreBlameMs * kNsPerMs) return;
  failure->kind = FailureKind::kStoreLost;
  failure->detail = facts.store_end;
}

int64_t EarlyExitMs(const v1::JobSpec& spec, bool marked) {
  if (marked) return kEarlyExitMarkedMs;
  return ExpectsCheckpoints(spec) ? kEarlyExitCheckpointedMs : kEarlyExitUnmarkedMs;
}

bool IsEarly(const RankFact& f, const v1::JobSpec& spec, const std::vector<RankFailure>& failures,
             bool peers_run, Now now) {
  const bool marked = f.hello && f.worker_phase > 0;
  if (marked && f.worker_phase >= rank::kPhaseTeardown) return false;  // it said that it was done
  for (const RankFailure& other : failures) {
    const int64_t after_ns = other.at_mono_ns - f.ended_ns;
    if (after_ns >= 0 && after_ns <= kVictimWindowMs * kNsPerMs) return true;
  }
  return peers_run && now.mono_ns - f.ended_ns >= EarlyExitMs(spec, marked) * kNsPerMs;
}

}  // namespace

bool RankHasStarted(const RankFact& f) { return f.phase != v1::RANK_PHASE_UNSPECIFIED; }
bool RankEndedWell(const RankFact& f) {
  return f.phase == v1::RANK_PHASE_EXITED && f.exit_code == 0 && !f.vanished;
}

bool AllRanksAre(const JobFacts& facts, uint32_t world_size, bool (*predicate)(const RankFact&)) {
  if (world_size == 0) return false;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    const auto it = facts.ranks.find(rank);
    if (it == facts.ranks.end() || !predicate(it->second)) return false;
  }
  return true;
}

uint64_t LargestStep(const JobFacts& facts) {
  uint64_t step = 0;
  for (const auto& [rank, f] : facts.ranks) step = std::max(step, f.step);
  return step;
}

uint64_t SmallestStep(const JobFacts& facts) {
  uint64_t step = std::numeric_limits<uint64_t>::max();
  for (const auto& [rank, f] : facts.ranks) step = std::min(step, f.step);
  return facts.ranks.empty() ? 0 : step;
}

std::vector<RankFailure> CollectFailures(Cycle& c, const records::JobRecord& job,
                                         int64_t before_ns) {
  JobFacts& facts = c.job_facts(job.status().id());
  if (facts.attempt != job.last_run_attempt()) return {};
  std::vector<RankFailure> failures;
  std::vector<uint32_t> ended_well;
  bool peers_run = false;
  const bool observes_stops = ObservesStops(c, job);
  for (const auto& node : job.status().placement().nodes()) {
    for (const auto& placed : node.ranks()) {
      const RankFact& f = facts.ranks[placed.rank()];
      RankFailure failure;
      failure.rank = placed.rank();
      failure.node = node.node();
      failure.exit_code = f.exit_code;
      failure.oom_killed = f.oom_killed;
      failure.step = f.step;
      failure.start_step = job.status().start_point().ref().step();
      failure.has_marks = f.hello;
      failure.start_is_program = f.start_is_program;
      failure.message = f.message;
      failure.stderr_tail = f.stderr_tail;
      failure.detail = f.detail;
      failure.device_reason = DeviceReason(c, job, node.node(), placed.rank());
      if (Judge(c, f, node.node(), before_ns, observes_stops, &failure)) {
        BlameStore(facts, &failure);
        failures.push_back(failure);
      } else if (RankEndedWell(f)) {
        ended_well.push_back(placed.rank());
      } else {
        peers_run = true;
      }
    }
  }
  std::vector<RankFailure> early;
  for (const uint32_t rank : ended_well) {
    const RankFact& f = facts.ranks[rank];
    if (f.ended_ns >= before_ns || !IsEarly(f, job.status().spec(), failures, peers_run, c.now))
      continue;
    RankFailure failure;
    failure.rank = rank;
    failure.node = f.node;
    failure.kind = FailureKind::kExitedEarly;
    failure.at_mono_ns = f.ended_ns;
    failure.step = f.step;
    failure.has_marks = f.hello;
    failure.message = f.message;
    failure.stderr_tail = f.stderr_tail;
    early.push_back(std::move(failure));
  }
  failures.insert(failures.end(), early.begin(), early.end());
  return failures;
}

}  // namespace holdfast::sched
