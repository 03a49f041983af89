// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/live.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "proto/text.h"
#include "scheduler/core/live_causes.h"

namespace holdfast::sched {
namespace {

constexpr int kLevels = 2;  // one may have been on its way when the rank went on
constexpr char kAction[] = "stop all ranks and start them again";
constexpr size_t kEvidenceBytesMax = 8 << 10;

std::vector<LiveRank> LiveRanks(const JobFacts& facts) {
  std::vector<LiveRank> out;
  for (const auto& [number, f] : facts.ranks) {
    const bool stopped = f.phase == v1::RANK_PHASE_STOPPED;
    if (!stopped && f.phase != v1::RANK_PHASE_RUNNING) continue;
    LiveRank rank{number, f.node, 0, std::nullopt};
    if (stopped && f.stopped_levels >= kLevels) rank.stopped_ns = f.stopped_ns;
    if (!stopped && f.quiet_levels >= kLevels) rank.quiet = f.quiet;
    out.push_back(std::move(rank));
  }
  return out;
}

// Of the job's last recovery, where its first step could be seen.
int64_t RestartMs(const records::JobRecord& job) {
  for (int i = job.status().incidents_size() - 1; i >= 0; --i) {
    const v1::Incident& incident = job.status().incidents(i);
    if (incident.first_step_ms() > 0) return static_cast<int64_t>(incident.first_step_ms());
  }
  return kRestartMsDefault;
}

RestartCost CostOf(Cycle& c, const records::JobRecord& job, const LiveCause& cause) {
  const JobFacts& facts = c.job_facts(job.status().id());
  RestartCost cost;
  cost.restart_ms = RestartMs(job);
  if (facts.running_since_ns > 0)
    cost.attempt_age_ms = (c.now.mono_ns - facts.running_since_ns) / kNsPerMs;
  // A hung job makes no work: what is lost is what it had done by then.
  cost.points_visible = facts.newest_complete_step > 0 && facts.newest_complete_ns > 0;
  if (cost.points_visible) {
    cost.since_point_ms =
        std::max<int64_t>(0, cause.begin_ns - facts.newest_complete_ns) / kNsPerMs;
  }
  return cost;
}

void AddLedgerEvent(Cycle& c, const records::JobRecord& job, const std::string& kind,
                    const v1::LedgerEntry& entry, const std::string& text) {
  v1::Event event;
  event.set_kind(kind);
  event.set_job(job.status().id());
  event.set_attempt(entry.attempt());
  event.set_node(entry.node());
  event.set_text(text);
  *event.mutable_ledger() = entry;
  c.txn.AddEvent(std::move(event));
}

void Fill(const LiveCause& cause, v1::LedgerEntry* entry) {
  entry->set_fault_class(cause.fault_class);
  entry->mutable_ranks()->Assign(cause.ranks.begin(), cause.ranks.end());
  entry->set_node(cause.node);
  entry->set_what(cause.what);
  entry->set_evidence(proto::HeadUtf8(cause.evidence, kEvidenceBytesMax));
  entry->set_confidence(cause.confidence);
}

std::string Seconds(int64_t ms) {
  return absl::StrFormat("%.1f s", static_cast<double>(ms) / 1000.0);
}

std::string OpenText(const v1::LedgerEntry& entry) {
  const bool acts = entry.mode() == v1::CAUSE_MODE_ACT;
  return absl::StrCat(entry.what(), "; ", acts ? "will" : "observed: would", " ", entry.action(),
                      " once the time lost exceeds what that costs, ", Seconds(entry.cost_ms()),
                      absl::StrFormat(" (%.0f %% sure)", 100 * entry.confidence()));
}

v1::LedgerEntry* OpenEntry(Cycle& c, records::JobRecord* job, const LiveCause& cause,
                           v1::CauseMode mode) {
  v1::LedgerEntry* entry = c.txn.AddLedger();
  entry->set_job(job->status().id());
  entry->set_name(job->status().spec().name());
  entry->set_attempt(job->last_run_attempt());
  entry->set_cause(cause.cause);
  entry->set_mode(mode);
  entry->set_action(kAction);
  entry->set_begin_wall_ns(c.now.wall_ns - (c.now.mono_ns - cause.begin_ns));
  entry->set_named_ms((c.now.mono_ns - cause.begin_ns) / kNsPerMs);
  entry->set_outcome(v1::LedgerEntry::OUTCOME_OPEN);
  Fill(cause, entry);
  entry->set_cost_ms(CostMs(CostOf(c, *job, cause)));
  (*job->mutable_open_ledger())[cause.cause] = entry->id();
  AddLedgerEvent(c, *job, "ledger.opened", *entry, OpenText(*entry));
  return entry;
}

void CloseEntry(Cycle& c, records::JobRecord* job, const std::string& cause,
                v1::LedgerEntry::Outcome outcome, const std::string& text) {
  const auto open = job->open_ledger().find(cause);
  if (open == job->open_ledger().end()) return;
  v1::LedgerEntry* entry = c.txn.MutableLedger(open->second);
  job->mutable_open_ledger()->erase(cause);
  if (entry == nullptr) return;
  entry->set_outcome(outcome);
  entry->set_outcome_text(text);
  entry->set_lasted_ms(std::max<int64_t>(0, (c.now.wall_ns - entry->begin_wall_ns()) / kNsPerMs));
  AddLedgerEvent(c, *job, "ledger.closed", *entry, absl::StrCat(entry->what(), ": ", text));
}

std::vector<RankFailure> FailuresOf(Cycle& c, uint64_t id, const LiveCause& cause) {
  std::vector<RankFailure> failures;
  JobFacts& facts = c.job_facts(id);
  for (const uint32_t rank : cause.ranks) {
    const RankFact& f = facts.ranks[rank];
    RankFailure failure;
    failure.rank = rank;
    failure.node = f.node;
    failure.kind = FailureKind::kHung;
    failure.hung_class = cause.fault_class;
    failure.at_mono_ns = cause.begin_ns;
    failure.step = f.step;
    failure.has_marks = f.hello;
    failure.detail = cause.what;
    failure.message = cause.evidence;
    failures.push_back(std::move(failure));
  }
  return failures;
}

// A Python line, another rank. How long it has lasted by now is no news: each change is a write.
bool MoreIsKnown(const v1::LedgerEntry& entry, const LiveCause& cause) {
  const auto has_lines = [](const std::string& evidence) {
    return evidence.find("python") != std::string::npos;
  };
  return entry.ranks_size() != static_cast<int>(cause.ranks.size()) || entry.what() != cause.what ||
         (has_lines(cause.evidence) && !has_lines(entry.evidence()));
}

// All of its ranks are seen to move. A scheduler or an agent that has just started knows nothing
// yet, and a rank that still stands but is not named any more has not gone on.
bool WentOn(Cycle& c, uint64_t id, const v1::LedgerEntry& entry) {
  const JobFacts& facts = c.job_facts(id);
  return std::all_of(entry.ranks().begin(), entry.ranks().end(), [&](uint32_t rank) {
    const auto fact = facts.ranks.find(rank);
    return fact != facts.ranks.end() && fact->second.phase == v1::RANK_PHASE_RUNNING &&
           fact->second.moving_levels >= kLevels;
  });
}

// One cause of a running job: its entry follows it. True when it is to be acted on now.
bool Follow(Cycle& c, uint64_t id, const char* name, const std::optional<LiveCause>& cause) {
  if (!cause.has_value() && !c.txn.FindJob(id)->open_ledger().contains(name)) return false;
  records::JobRecord* job = c.txn.MutableJob(id);
  const auto open = job->open_ledger().find(name);
  if (!cause.has_value()) {
    const v1::LedgerEntry* entry = c.txn.MutableLedger(open->second);
    if (entry != nullptr && !WentOn(c, id, *entry)) return false;
    CloseEntry(c, job, name, v1::LedgerEntry::OUTCOME_WENT_ON, "it went on by itself");
    return false;
  }
  const v1::CauseMode mode = proto::EffectiveMode(job->status().spec(), c.options.modes, name);
  v1::LedgerEntry* entry =
      open == job->open_ledger().end() ? nullptr : c.txn.MutableLedger(open->second);
  if (entry == nullptr) entry = OpenEntry(c, job, *cause, mode);
  if (MoreIsKnown(*entry, *cause)) Fill(*cause, entry);
  if (!IsDue(*cause, entry->cost_ms(), c.now.mono_ns)) return false;
  if (entry->due_ms() == 0) {
    entry->set_due_ms((c.now.mono_ns - cause->begin_ns) / kNsPerMs);
    if (mode != v1::CAUSE_MODE_ACT)
      AddLedgerEvent(c, *job, "ledger.due", *entry,
                     absl::StrCat(entry->what(), "; observed: would ", entry->action(), " now"));
  }
  if (mode != v1::CAUSE_MODE_ACT) return false;
  entry->set_mode(mode);  // it may have been changed since
  CloseEntry(c, job, name, v1::LedgerEntry::OUTCOME_ACTED,
             absl::StrCat(entry->action(), ", by its mode"));
  return true;
}

}  // namespace

bool ObservesStops(Cycle& c, const records::JobRecord& job) {
  return proto::EffectiveMode(job.status().spec(), c.options.modes, proto::kCauseStopped) ==
         v1::CAUSE_MODE_OBSERVE;
}

void NoteActedStops(Cycle& c, uint64_t id, const std::vector<RankFailure>& failures) {
  const bool any = std::any_of(failures.begin(), failures.end(), [](const RankFailure& f) {
    return f.kind == FailureKind::kStopped;
  });
  if (!any) return;
  const std::optional<LiveCause> cause = FindStopped(LiveRanks(c.job_facts(id)));
  if (!cause.has_value()) return;  // killed since
  records::JobRecord* job = c.txn.MutableJob(id);
  const auto open = job->open_ledger().find(proto::kCauseStopped);
  v1::LedgerEntry* entry =  // one that was observed until its mode changed
      open == job->open_ledger().end() ? nullptr : c.txn.MutableLedger(open->second);
  if (entry == nullptr) entry = OpenEntry(c, job, *cause, v1::CAUSE_MODE_ACT);
  entry->set_mode(v1::CAUSE_MODE_ACT);
  if (entry->due_ms() == 0) entry->set_due_ms((c.now.mono_ns - cause->begin_ns) / kNsPerMs);
  CloseEntry(c, job, proto::kCauseStopped, v1::LedgerEntry::OUTCOME_ACTED,
             absl::StrCat(kAction, ", by its mode"));
}

std::vector<RankFailure> WatchLive(Cycle& c, uint64_t id) {
  if (c.txn.FindJob(id)->status().state() != v1::JOB_STATE_RUNNING) return {};
  const std::vector<LiveRank> ranks = LiveRanks(c.job_facts(id));
  // Stopped ranks are recovered at once where that is the mode, without a comparison of costs: that
  // is no guess.
  if (ObservesStops(c, *c.txn.FindJob(id))) Follow(c, id, proto::kCauseStopped, FindStopped(ranks));
  const std::optional<LiveCause> hang = FindHang(ranks, c.now.mono_ns);
  if (!Follow(c, id, proto::kCauseHang, hang)) return {};
  return FailuresOf(c, id, *hang);
}

void CloseLedger(Cycle& c, uint64_t id, const std::string& how) {
  if (c.txn.FindJob(id)->open_ledger().empty()) return;
  records::JobRecord* job = c.txn.MutableJob(id);
  for (const std::string& cause : proto::KnownCauses())
    CloseEntry(c, job, cause, v1::LedgerEntry::OUTCOME_ENDED, how);
}

}  // namespace holdfast::sched
