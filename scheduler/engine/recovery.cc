// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "proto/fence.h"
#include "proto/text.h"
#include "scheduler/core/restart_policy.h"
#include "scheduler/engine/attempt.h"
#include "scheduler/engine/failures.h"
#include "scheduler/engine/incidents.h"
#include "scheduler/engine/job_flow.h"
#include "scheduler/engine/live.h"
#include "scheduler/engine/saves.h"

namespace holdfast::sched {
namespace {

constexpr size_t kStderrBytesMax = 8 << 10;

bool FirstStepEver(Cycle& c, const records::JobRecord& job) {
  const JobFacts& facts = c.job_facts(job.status().id());
  if (job.book().first_step_ever() || LargestStep(facts) > 0) return true;
  // A program that shows no steps: what ends it after so long is no mistyped import.
  return !facts.hello_ever && facts.running_since_ns > 0 &&
         SinceMs(facts.running_since_ns, c.now.mono_ns) >= static_cast<double>(kUnseenStartMs);
}

void EnterRecovery(Cycle& c, uint64_t id, const std::string& reason) {
  records::JobRecord* job = c.txn.MutableJob(id);
  JobFacts& facts = c.job_facts(id);
  job->mutable_status()->set_step(LargestStep(facts));
  CloseLedger(c, id, absl::StrCat("the attempt ended: ", reason));
  Step(c, job, JobEvent::kFault, reason);
  job->mutable_status()->set_attempt(job->status().attempt() + 1);
  job->set_fault_counted(false);
  job->set_backoff_ms(0);
  job->set_recovering(true);
  job->set_manual_restart(false);
  job->set_restart_from_step(0);
  facts.stop_ordered_ns = c.now.mono_ns;
  facts.late_losses.clear();
  for (auto& [name, node] : facts.nodes) {
    node.stop_ordered = false;
    node.stop_complete = false;
  }
  AddJobEvent(c, *job, "job.recovering",
              absl::StrCat("attempt ", job->last_run_attempt(), " is over: ", reason));
  FollowHolds(c, id);
}

void AddRankEvents(Cycle& c, const records::JobRecord& job,
                   const std::vector<RankFailure>& failures) {
  constexpr size_t kEventsMax = 16;
  for (size_t i = 0; i < failures.size() && i < kEventsMax; ++i) {
    const RankFailure& f = failures[i];
    if (f.kind == FailureKind::kNodeLost) continue;
    const char* kind = f.kind == FailureKind::kStopped ? "rank.stopped"
                       : f.kind == FailureKind::kHung  ? "rank.hung"
                                                       : "rank.exited";
    const bool by_itself = f.kind == FailureKind::kExit || f.kind == FailureKind::kStoreLost;
    const std::string how = by_itself ? DescribeExit(f.exit_code) : f.detail;
    const std::string text = f.kind == FailureKind::kHung
                                 ? f.detail
                                 : absl::StrCat("rank ", f.rank, how.empty() ? "" : ": ", how);
    AddJobEvent(c, job, kind, text, f.node);
  }
}

// The cause as it stands: from the facts, or after a restart of the scheduler from what was written
// down.
Cause CauseOf(Cycle& c, records::JobRecord* job) {
  JobFacts& facts = c.job_facts(job->status().id());
  std::vector<RankFailure> failures;
  if (facts.stop_ordered_ns > 0) {
    // What ended at the very moment of the order was ended by it; a node whose last beat came then
    // was not.
    for (RankFailure& f : CollectFailures(c, *job, facts.stop_ordered_ns)) {
      if (f.kind == FailureKind::kNodeLost || f.at_mono_ns < facts.stop_ordered_ns)
        failures.push_back(std::move(f));
    }
  }
  for (const RankFailure& first : facts.first_failures) {
    const bool newer = std::any_of(failures.begin(), failures.end(),
                                   [&](const RankFailure& f) { return f.rank == first.rank; });
    if (!newer) failures.push_back(first);
  }
  if (!failures.empty()) return NameFirstCause(failures, FirstStepEver(c, *job));
  Cause cause;
  if (const v1::Incident* incident = OpenIncident(job)) {
    cause.fault_class = incident->fault_class();
    cause.ranks.assign(incident->ranks().begin(), incident->ranks().end());
    cause.victims.assign(incident->victims().begin(), incident->victims().end());
    cause.node = incident->node();
    cause.what = incident->what();
    cause.detail = incident->detail();
    cause.own_program = incident->fault_class() == v1::USER_PROGRAM;
  }
  return cause;
}

// A node that is lost beside another cause, or after the old attempt was ordered to stop, is a
// fault of its own.
void NoteOtherLosses(Cycle& c, records::JobRecord* job, const Cause& cause) {
  JobFacts& facts = c.job_facts(job->status().id());
  for (const auto& placed : job->status().placement().nodes()) {
    const std::string& node = placed.node();
    if (!IsLost(c, node) || (cause.fault_class == v1::NODE_LOST && cause.node == node)) continue;
    if (!facts.late_losses.insert(node).second) continue;
    AddSideIncident(c, job->status().id(), v1::NODE_LOST, node,
                    absl::StrCat("node ", node, " was lost during the recovery"));
  }
}

void Fail(Cycle& c, uint64_t id, const Cause& cause, const std::string& reason) {
  records::JobRecord* job = c.txn.MutableJob(id);
  job->mutable_status()->set_exit_code(ShellExitCode(cause.root.exit_code));
  const std::string& last = cause.root.stderr_tail.empty() ? cause.detail : cause.root.stderr_tail;
  job->mutable_status()->set_last_stderr(proto::TailUtf8(last, kStderrBytesMax));
  if (v1::Incident* incident = OpenIncident(job)) incident->set_rung(6);
  EndJob(c, id, JobEvent::kEndFailed, reason);
}

// Remembers a start point that does not verify, so that the next attempt starts from an older one.
// False: there is none, and the job has ended. Beginning anew would throw away all that was
// trained.
bool GoBehindDamage(Cycle& c, uint64_t id, const Cause& cause) {
  if (cause.fault_class != v1::CORRUPT_CHECKPOINT) return true;
  records::JobRecord* job = c.txn.MutableJob(id);
  const v1::StartPoint start = job->status().start_point();
  const std::string what = absl::StrCat(DescribeStart(start), " is damaged: ", cause.detail);
  AddJobEvent(c, *job, "checkpoint.damaged", what);
  if (start.ref().job() != id) {
    Fail(c, id, cause, absl::StrCat(what, "; submit again with --from an older checkpoint"));
    return false;
  }
  *job->add_damaged() = start;
  const v1::StartPoint next = ChooseStart(c, job, job->status().placement());
  if (next.source() != v1::StartPoint::SOURCE_SCRATCH) return true;
  Fail(c, id, cause,
       absl::StrCat(what, "; no undamaged snapshot or checkpoint of the job is left"));
  return false;
}

// Asks the policy once for each fault. False: the job has ended.
bool CountFault(Cycle& c, uint64_t id) {
  records::JobRecord* job = c.txn.MutableJob(id);
  if (job->manual_restart() || job->fault_counted()) return true;
  JobFacts& facts = c.job_facts(id);
  const Cause cause = CauseOf(c, job);
  const std::vector<records::AttemptLink> links(job->line().begin(), job->line().end());
  const std::vector<v1::StartPoint> damaged(job->damaged().begin(), job->damaged().end());
  const Point snapshot =
      NewestCompleteSnapshot(job->status().placement(), facts.arenas, Line(id, links), damaged);
  Progress progress;
  progress.newest_point_step = std::max(snapshot.step, NewestCheckpoint(c, *job).step());
  if (progress.newest_point_step > 0) job->mutable_book()->set_points_visible(true);
  progress.points_visible = job->book().points_visible();
  progress.active_ms =
      facts.running_since_ns > 0 ? (facts.stop_ordered_ns - facts.running_since_ns) / kNsPerMs : 0;
  NoteProgress(progress, job->mutable_book());
  if (FirstStepEver(c, *job)) job->mutable_book()->set_first_step_ever(true);
  const RestartDecision decision =
      DecideRestart(job->status().spec(), cause, progress.active_ms, job->mutable_book());
  const uint32_t used = job->book().used(), max = RestartsMax(job->status().spec());
  job->mutable_status()->set_restarts_left(max > used ? max - used : 0);
  if (!decision.restart) {
    if (v1::Incident* incident = OpenIncident(job); incident != nullptr && decision.blames_program)
      incident->set_fault_class(v1::USER_PROGRAM);
    Fail(c, id, cause, decision.reason);
    return false;
  }
  if (!GoBehindDamage(c, id, cause)) return false;
  job->set_fault_counted(true);
  job->set_backoff_ms(decision.backoff_ms);
  job->mutable_status()->set_reason(decision.reason);
  return true;
}

}  // namespace

bool FencesAllow(Cycle& c, const records::JobRecord& job, std::string* waiting_for) {
  const v1::JobSpec& spec = job.status().spec();
  for (const auto& hold : job.holds()) {
    if (hold.stopped()) continue;
    const records::NodeRecord* node = c.txn.FindNode(hold.node());
    FenceInput input;
    input.mode = proto::EffectiveFence(spec);
    input.fence_ms = spec.fence_ms();
    if (node != nullptr) {
      input.proof = node->confirmed_dead();
      input.witnesses.assign(node->witnesses().begin(), node->witnesses().end());
      input.words = c.facts.nodes[hold.node()].words;
    }
    const FenceVerdict verdict = JudgeFence(input);
    if (verdict.released) continue;
    *waiting_for =
        absl::StrCat("node ", hold.node(), " is gone, its ranks may still run; ", verdict.reason);
    return false;
  }
  return true;
}

void BeginRecovery(Cycle& c, uint64_t id, const std::vector<RankFailure>& failures) {
  JobFacts& facts = c.job_facts(id);
  const Cause cause = NameFirstCause(failures, FirstStepEver(c, *c.txn.FindJob(id)));
  facts.fault_ns = cause.root.at_mono_ns;
  facts.first_failures = failures;
  EnterRecovery(c, id, cause.what);
  records::JobRecord* job = c.txn.MutableJob(id);
  AddRankEvents(c, *job, failures);
  BeginIncident(c, job, cause, job->last_run_attempt());
  SettleRecovery(c, id);
}

void BeginManualRestart(Cycle& c, uint64_t id, uint64_t from_step) {
  c.job_facts(id).fault_ns = c.now.mono_ns;
  c.job_facts(id).first_failures.clear();
  EnterRecovery(c, id, "restart was ordered");
  records::JobRecord* job = c.txn.MutableJob(id);
  job->set_manual_restart(true);
  job->set_restart_from_step(from_step);
  SettleRecovery(c, id);
}

void SettleRecovery(Cycle& c, uint64_t id) {
  JobFacts& facts = c.job_facts(id);
  records::JobRecord* job = c.txn.MutableJob(id);
  if (facts.fault_ns == 0) {  // the scheduler was restarted meanwhile
    const v1::Incident* incident = OpenIncident(job);
    const int64_t age_ns =
        incident == nullptr ? 0 : std::max<int64_t>(0, c.now.wall_ns - incident->begin_wall_ns());
    facts.fault_ns = std::max<int64_t>(1, c.now.mono_ns - age_ns);
  }
  const Cause cause = CauseOf(c, job);
  NoteOtherLosses(c, job, cause);
  if (!job->fault_counted() && !job->manual_restart() && !cause.what.empty())
    RenameIncident(c, job, cause);
  const StopProgress progress = WhatStillRuns(c, *job);
  facts.waiting = progress.waiting_for;
  if (!progress.reachable_stopped) return;
  SettleSaves(c, id);
  if (!CountFault(c, id)) return;
  job = c.txn.MutableJob(id);
  if (!FencesAllow(c, *job, &facts.waiting)) return;
  if (v1::Incident* incident = OpenIncident(job);
      incident != nullptr && incident->stopped_ms() == 0) {
    incident->set_stopped_ms(SinceMs(facts.fault_ns, c.now.mono_ns));
  }
  const int64_t ready_ns = facts.fault_ns + job->backoff_ms() * kNsPerMs;
  if (c.now.mono_ns < ready_ns) {
    facts.waiting = absl::StrCat("waits ", job->backoff_ms() / 1000, " s before the next start: ",
                                 job->book().faults_without_progress(), " faults without progress");
    return;
  }
  const PlacementResult placed = Place(RequestOf(*job), NodesForPlacement(c, id));
  if (placed.placed) {
    StartAttempt(c, id, placed.placement);
    return;
  }
  Step(c, job, JobEvent::kNoPlace, placed.reason);
  if (v1::Incident* incident = OpenIncident(job)) incident->set_rung(5);
  facts.queued_since_ns = c.now.mono_ns;
  facts.waiting = placed.reason;
  AddJobEvent(c, *job, "job.queued", absl::StrCat("cannot go on now: ", placed.reason));
}

std::vector<PlacementNode> NodesForPlacement(Cycle& c, uint64_t job) {
  std::map<std::string, std::set<std::string>> held;
  std::map<std::string, uint32_t> ranks;
  for (const uint64_t other : c.txn.ActiveJobs()) {
    const records::JobRecord* record = c.txn.FindJob(other);
    for (const auto& hold : record->holds()) {
      if (other == job && hold.stopped()) continue;
      held[hold.node()].insert(hold.device_ids().begin(), hold.device_ids().end());
      const v1::NodePlacement* placed = PlacementOn(record->status().placement(), hold.node());
      ranks[hold.node()] += placed == nullptr ? 1 : static_cast<uint32_t>(placed->ranks_size());
    }
  }
  std::vector<PlacementNode> nodes;
  for (const std::string& name : c.txn.NodeNames()) {
    const records::NodeRecord* record = c.txn.FindNode(name);
    PlacementNode node;
    node.name = name;
    std::string reason;
    const v1::NodeState state = StateOfNode(c, *record, &reason);
    node.ready = state == v1::NODE_STATE_READY;
    node.why_not = v1::NodeState_Name(state).substr(sizeof("NODE_STATE_") - 1);
    node.ranks_placed = ranks[name];
    for (const auto& device : record->devices()) {
      if (!device.healthy()) continue;
      ++node.devices;
      if (!held[name].count(device.id())) node.free.push_back({device.id(), device.index()});
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace holdfast::sched
