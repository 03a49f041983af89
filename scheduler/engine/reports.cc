// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/reports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/rank/recorder.h"
#include "scheduler/engine/saves.h"

namespace holdfast::sched {
namespace {

constexpr int kMissingLevelsMax = 2;  // one level may have been on its way when the rank started
constexpr int64_t kWithKeeperNs =
    2 * kNsPerSec;  // ranks die with their keeper by PDEATHSIG; either may be told first
constexpr int64_t kAgeMaxMs = 24 * 3600 * 1000;

int64_t AgeToNs(int64_t age_ms, Now now) {
  return now.mono_ns - std::clamp<int64_t>(age_ms, 0, kAgeMaxMs) * kNsPerMs;
}

bool IsAlive(const RankFact& f) {
  return f.phase == v1::RANK_PHASE_RUNNING || f.phase == v1::RANK_PHASE_STOPPED;
}
bool HasEnded(const RankFact& f) {
  return f.phase == v1::RANK_PHASE_EXITED || f.phase == v1::RANK_PHASE_START_FAILED || f.vanished;
}
bool HasEnded(const v1::RankReport& r) {
  return r.phase() == v1::RANK_PHASE_EXITED || r.phase() == v1::RANK_PHASE_START_FAILED;
}

// Facts are about the newest attempt that was handed out; a restarted scheduler learns which from
// its state.
JobFacts& FactsOf(Cycle& c, const records::JobRecord& job) {
  JobFacts& facts = c.job_facts(job.status().id());
  if (facts.attempt != job.last_run_attempt()) {
    facts.attempt = job.last_run_attempt();
    facts.ranks.clear();
  }
  return facts;
}

void CopyPhase(const v1::RankReport& report, int64_t happened_ns, RankFact* f) {
  if (HasEnded(*f) && !HasEnded(report)) return;  // a level that was on its way when the rank ended
  if (HasEnded(report) && f->ended_ns == 0) f->ended_ns = happened_ns;
  if (report.phase() == v1::RANK_PHASE_STOPPED) {
    if (f->stopped_levels++ == 0) f->stopped_ns = happened_ns;
  } else if (!HasEnded(report)) {
    f->stopped_levels = 0;
    f->stopped_ns = 0;
  }
  f->phase = report.phase();
  f->exit_code = report.exit_code();
  f->start_is_program |= report.start_is_program();
  f->oom_killed |= report.oom_killed();
}

void CopyProgress(const v1::RankReport& report, Now now, RankFact* f) {
  f->step = std::max(f->step, report.step());
  if (report.has_loss()) {
    f->has_loss = true;
    f->loss = report.loss();
  }
  f->worker_phase = report.worker_phase();
  f->hello |= report.hello();
  f->skipped = report.snapshots_skipped();
  if (!report.message().empty()) f->message = report.message();
  if (report.first_step() > 0 && f->first_step == 0) {
    f->first_step = report.first_step();
    f->first_step_ns = AgeToNs(report.first_step_age_ms(), now);
  }
  if (f->restored_ns == 0 && report.worker_phase() >= rank::kPhaseFirstStep) {
    f->restored_ns = report.worker_phase() == rank::kPhaseFirstStep
                         ? AgeToNs(report.phase_age_ms(), now)
                         : now.mono_ns;
    if (f->first_step_ns > 0) f->restored_ns = std::min(f->restored_ns, f->first_step_ns);
  }
}

// `happened_ns`: of the end or stop, if that is what the report tells.
void AbsorbRank(Cycle& c, const records::JobRecord& job, const std::string& node,
                const v1::RankReport& report, int64_t happened_ns) {
  if (report.attempt() != job.last_run_attempt() || report.attempt() == 0) return;
  if (NodeOfRank(job.status().placement(), report.rank()) != node) return;
  JobFacts& facts = FactsOf(c, job);
  RankFact& f = facts.ranks[report.rank()];
  f.node = node;
  f.missing_levels = 0;
  CopyPhase(report, happened_ns, &f);
  CopyProgress(report, c.now, &f);
  facts.hello_ever |= f.hello;
  for (const auto& id : report.sealed()) {
    if (id.persist())
      facts.newest_persist = std::max(facts.newest_persist, {id.attempt(), id.step()});
  }
}

// Levels only: an edge says nothing of the time around it.
void AbsorbQuiet(JobFacts* facts, const records::JobRecord& job, const v1::RankReport& report) {
  const auto rank = facts->ranks.find(report.rank());
  if (rank == facts->ranks.end() || report.attempt() != job.last_run_attempt()) return;
  RankFact& f = rank->second;
  // Without a signal nothing is known of it; of one that was stopped, nothing that was seen then.
  const bool known = !report.has_quiet() || !report.quiet().signal().empty();
  const bool quiet = known && report.has_quiet() && report.phase() != v1::RANK_PHASE_STOPPED;
  f.moving_levels = known && !report.has_quiet() ? f.moving_levels + 1 : 0;
  f.quiet_levels = quiet ? f.quiet_levels + 1 : 0;
  f.quiet = report.quiet();
}

std::vector<Point> SealedPoints(const v1::RankReport& report) {
  std::vector<Point> points;
  for (const auto& id : report.sealed()) points.push_back({id.attempt(), id.step()});
  return points;
}

// What the arenas hold. A node that has reported its stop does not change them any more, but a
// level sent before may still arrive.
void AbsorbArenas(JobFacts* facts, const std::string& node, const v1::JobOnNode& on_node) {
  if (facts->nodes[node].stop_complete) {
    // A keeper that has died since took the memory with it.
    if (!on_node.keeper_alive() && !on_node.adopting()) facts->arenas.erase(node);
    return;
  }
  NodeArenas arenas;
  std::map<uint32_t, uint64_t> newest;
  for (const auto& rank : on_node.ranks()) {
    if (newest.count(rank.rank()) && newest[rank.rank()] > rank.attempt()) continue;
    newest[rank.rank()] = rank.attempt();
    arenas[rank.rank()] = SealedPoints(rank);
  }
  facts->arenas[node] = std::move(arenas);
}

void AbsorbMissing(Cycle& c, const records::JobRecord& job, const std::string& node,
                   const v1::JobOnNode* on_node) {
  const v1::JobState state = job.status().state();
  if (state != v1::JOB_STATE_STARTING && state != v1::JOB_STATE_RUNNING) return;
  const v1::NodePlacement* placed = PlacementOn(job.status().placement(), node);
  if (placed == nullptr) return;
  JobFacts& facts = FactsOf(c, job);
  for (const auto& rank : placed->ranks()) {
    const bool listed =
        on_node != nullptr &&
        std::any_of(on_node->ranks().begin(), on_node->ranks().end(), [&](const auto& r) {
          return r.rank() == rank.rank() && r.attempt() == job.last_run_attempt();
        });
    RankFact& f = facts.ranks[rank.rank()];
    if (listed || HasEnded(f)) continue;
    const bool must_be_there = IsAlive(f) || state == v1::JOB_STATE_RUNNING ||
                               (on_node != nullptr && on_node->attempt() >= job.last_run_attempt());
    if (!must_be_there || ++f.missing_levels < kMissingLevelsMax) continue;
    f.node = node;
    f.vanished = true;
    f.ended_ns = c.now.mono_ns;
    f.detail = "its node's agent does not know it any more";
  }
}

void AbsorbJob(Cycle& c, const records::JobRecord& job, const std::string& node,
               const v1::JobOnNode& on_node) {
  JobFacts& facts = FactsOf(c, job);
  NodeOfJob& known = facts.nodes[node];
  known.known = true;
  known.clean = false;
  if (on_node.adopting()) return;  // unknown is not gone
  const bool met_anew =
      known.attempt != on_node.attempt() || known.master_port != on_node.master_port();
  known.attempt = on_node.attempt();
  known.master_port = on_node.master_port();
  if (met_anew && job.status().placement().nodes_size() > 1) {
    for (const std::string& other : NodesOfJob(c, job)) c.dirty_nodes.insert(other);
  }
  known.clean = on_node.clean();
  known.dirty_reason = on_node.dirty_reason();
  known.commits_written = on_node.commits_written();
  known.ranks_ended = on_node.ranks_size() > 0 && on_node.attempt() >= job.last_run_attempt() &&
                      std::all_of(on_node.ranks().begin(), on_node.ranks().end(),
                                  [](const auto& r) { return HasEnded(r); });
  for (const auto& rank : on_node.ranks()) {
    const bool stopped = rank.phase() == v1::RANK_PHASE_STOPPED;
    const int64_t happened_ns = stopped ? c.now.mono_ns : AgeToNs(rank.exit_age_ms(), c.now);
    AbsorbRank(c, job, node, rank, happened_ns);
    AbsorbQuiet(&facts, job, rank);
  }
  AbsorbArenas(&facts, node, on_node);
  AbsorbMissing(c, job, node, &on_node);
}

void CountLevel(JobFacts* facts, const std::string& node) {
  const auto on_node = facts->nodes.find(node);
  if (on_node != facts->nodes.end() && on_node->second.stop_delivered)
    ++on_node->second.levels_since;
  const auto orders = facts->orders.find(node);
  if (orders == facts->orders.end()) return;
  for (auto& [point, order] : orders->second) {
    if (order.delivered) ++order.levels_since;
  }
}

void AbsorbDevices(Cycle& c, const std::string& node, const v1::NodeReport& report) {
  const records::NodeRecord* record = c.txn.FindNode(node);
  if (record == nullptr || report.devices_size() == 0) return;
  bool same = record->devices_size() == report.devices_size();
  for (int i = 0; same && i < report.devices_size(); ++i) {
    same = record->devices(i).SerializeAsString() == report.devices(i).SerializeAsString();
  }
  if (same) return;
  records::NodeRecord* changed = c.txn.MutableNode(node);
  *changed->mutable_devices() = report.devices();
  c.queue_dirty = true;
  for (const auto& device : report.devices()) {
    if (!device.healthy())
      AddNodeEvent(c, node, "device.unhealthy", absl::StrCat(device.id(), ": ", device.reason()));
  }
}

// Jobs that have to do with the node, or that it mentioned before, and that its level leaves out
// now.
std::set<uint64_t> JobsNotMentioned(Cycle& c, const std::string& node,
                                    const std::set<uint64_t>& mentioned) {
  std::set<uint64_t> jobs;
  for (const uint64_t id : c.txn.ActiveJobs()) {
    if (!mentioned.count(id) && NodesOfJob(c, *c.txn.FindJob(id)).count(node)) jobs.insert(id);
  }
  for (const auto& [id, facts] : c.facts.jobs) {
    if (!mentioned.count(id) && facts.nodes.count(node) && c.txn.FindJob(id) != nullptr)
      jobs.insert(id);
  }
  return jobs;
}

void AbsorbAbsence(Cycle& c, const records::JobRecord& job, const std::string& node) {
  JobFacts& facts = FactsOf(c, job);
  NodeOfJob& known = facts.nodes[node];
  if (known.known) c.dirty_nodes.insert(node);
  known.known = false;
  known.clean = true;
  known.ranks_ended = false;
  known.dirty_reason.clear();
  CountLevel(&facts, node);
  AbsorbMissing(c, job, node, nullptr);
}

void NoteUnknown(Cycle& c, const std::string& node, const v1::NodeReport& report,
                 std::string unknown_jobs) {
  for (const auto& process : report.unknown_processes())
    absl::StrAppend(&unknown_jobs, unknown_jobs.empty() ? "" : "; ", process);
  NodeFacts& facts = c.facts.nodes[node];
  if (facts.unknown == unknown_jobs) return;
  facts.unknown = unknown_jobs;
  if (!unknown_jobs.empty()) AddNodeEvent(c, node, "node.unknown_processes", unknown_jobs);
}

}  // namespace

void AbsorbReport(Cycle& c, const std::string& node, const v1::NodeReport& report) {
  NodeFacts& node_facts = c.facts.nodes[node];
  if (!node_facts.level_seen) c.queue_dirty = true;
  node_facts.level_seen = true;
  AbsorbDevices(c, node, report);
  std::set<uint64_t> mentioned;
  std::string unknown, foreign;
  for (const auto& on_node : report.jobs()) {
    const records::JobRecord* job = c.txn.FindJob(on_node.job());
    if (job == nullptr) {
      const std::string text =
          absl::StrCat("job ", ToString(JobId{on_node.job()}), " is not known to this scheduler");
      absl::StrAppend(&unknown, unknown.empty() ? "" : "; ", text);
      if (!on_node.clean()) absl::StrAppend(&foreign, foreign.empty() ? "" : "; ", text);
      continue;
    }
    if (!mentioned.insert(on_node.job()).second) continue;
    if (!node_facts.jobs.count(on_node.job())) c.dirty_nodes.insert(node);
    AbsorbJob(c, *job, node, on_node);
    CountLevel(&c.job_facts(on_node.job()), node);
  }
  node_facts.jobs = mentioned;
  if (node_facts.foreign != foreign) c.queue_dirty = true;
  node_facts.foreign = foreign;
  NoteUnknown(c, node, report, unknown);
  for (const uint64_t id : JobsNotMentioned(c, node, mentioned))
    AbsorbAbsence(c, *c.txn.FindJob(id), node);
  AbsorbPrepared(c, node, report.prepared(), /*whole_level=*/true);
}

void AbsorbEvent(Cycle& c, const std::string& node, const v1::RankEvent& event) {
  const records::JobRecord* job = c.txn.FindJob(event.rank().job());
  if (job == nullptr) return;
  const int64_t age_ns = event.age_us() > 0 ? event.age_us() * kNsPerUs : event.age_ms() * kNsPerMs;
  const int64_t at_ns = c.now.mono_ns - std::clamp<int64_t>(age_ns, 0, kAgeMaxMs * kNsPerMs);
  JobFacts& facts = FactsOf(c, *job);
  if (event.kind() == v1::RankEvent::KIND_STOP_COMPLETE) {
    NodeOfJob& on_node = facts.nodes[node];
    // A repeated report of an earlier stop names an earlier attempt.
    if (event.rank().attempt() >= job->status().attempt() && on_node.stop_ordered)
      on_node.stop_complete = true;
    return;
  }
  if (event.rank().attempt() != job->last_run_attempt()) return;
  if (event.kind() == v1::RankEvent::KIND_STORE_DIED) {
    facts.store_end = event.detail();
    facts.store_end_ns = at_ns;
    AddJobEvent(c, *job, "job.store_died", event.detail(), node);
    return;
  }
  if (event.kind() == v1::RankEvent::KIND_KEEPER_DIED) {
    facts.arenas.erase(node);
    const v1::NodePlacement* placed = PlacementOn(job->status().placement(), node);
    for (int i = 0; placed != nullptr && i < placed->ranks_size(); ++i) {
      RankFact& f = facts.ranks[placed->ranks(i).rank()];
      const bool killed_with_it =
          f.phase == v1::RANK_PHASE_EXITED && f.exit_code < 0 && at_ns - f.ended_ns < kWithKeeperNs;
      if (HasEnded(f) && !killed_with_it) continue;
      f.node = node;
      f.vanished = true;
      f.ended_ns = f.ended_ns == 0 ? at_ns : f.ended_ns;
      f.detail = event.detail();
    }
    return;
  }
  AbsorbRank(c, *job, node, event.rank(), at_ns);
  const auto it = facts.ranks.find(event.rank().rank());
  if (it == facts.ranks.end() || it->second.node != node) return;
  RankFact& f = it->second;
  if (event.kind() == v1::RankEvent::KIND_STOPPED) f.stopped_levels = kMissingLevelsMax;
  if (event.kind() == v1::RankEvent::KIND_FIRST_STEP && f.first_step_ns > 0)
    f.first_step_ns = std::min(f.first_step_ns, at_ns);
  if (event.kind() == v1::RankEvent::KIND_SEALED && !facts.nodes[node].stop_complete) {
    facts.arenas[node][event.rank().rank()] = SealedPoints(event.rank());
  }
  if (!event.stderr_tail().empty()) f.stderr_tail = event.stderr_tail();
  if (!event.detail().empty()) f.detail = event.detail();
}

void AbsorbReboot(Cycle& c, const std::string& node) {
  for (const uint64_t id : c.txn.ActiveJobs()) {
    const records::JobRecord* job = c.txn.FindJob(id);
    if (!NodesOfJob(c, *job).count(node)) continue;
    JobFacts& facts = FactsOf(c, *job);
    facts.arenas.erase(node);
    const v1::JobState state = job->status().state();
    const v1::NodePlacement* placed = PlacementOn(job->status().placement(), node);
    if (placed != nullptr && (state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING)) {
      for (const auto& rank : placed->ranks()) {
        RankFact& f = facts.ranks[rank.rank()];
        if (HasEnded(f) && f.exit_code == 0 && !f.vanished) continue;
        f.node = node;
        f.vanished = true;
        f.ended_ns = c.now.mono_ns;
        f.detail = "its node started anew";
      }
    }
    for (int i = 0; i < job->holds_size(); ++i) {
      if (job->holds(i).node() == node) facts.nodes[node].stop_complete = true;
    }
  }
}

void NoteDesiredSent(Facts& facts, const std::string& node, const v1::DesiredState& desired) {
  for (auto& [id, job] : facts.jobs) {
    const auto on_node = job.nodes.find(node);
    if (on_node != job.nodes.end() && on_node->second.stop_ordered)
      on_node->second.stop_delivered = true;
  }
  for (const v1::DesiredJob& job : desired.jobs()) {
    const auto known = facts.jobs.find(job.job());
    if (known == facts.jobs.end()) continue;
    const auto orders = known->second.orders.find(node);
    if (orders == known->second.orders.end()) continue;
    for (const v1::CommitOrder& sent : job.commits()) {
      const auto order = orders->second.find(Point{sent.attempt(), sent.step()});
      if (order != orders->second.end()) order->second.delivered = true;
    }
  }
}

}  // namespace holdfast::sched
