// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/job_flow.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "scheduler/engine/failures.h"
#include "scheduler/engine/incidents.h"
#include "scheduler/engine/live.h"
#include "scheduler/engine/recovery.h"
#include "scheduler/engine/saves.h"

namespace holdfast::sched {
namespace {

bool MayRun(v1::JobState state) {
  return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING ||
         state == v1::JOB_STATE_COMMITTING;
}

bool NodeHasStopped(const NodeOfJob& node, uint64_t last_run_attempt) {
  constexpr int kLevelsSinceOrder = 2;
  if (node.stop_complete) return true;
  if (!node.clean) return false;
  // What it said of an older attempt says nothing about the newest.
  const bool newest_ended = node.ranks_ended && node.attempt >= last_run_attempt;
  return newest_ended || (node.stop_delivered && node.levels_since >= kLevelsSinceOrder);
}

void NoteProgressOfRun(Cycle& c, uint64_t id) {
  const records::JobRecord* job = c.txn.FindJob(id);
  JobFacts& facts = c.job_facts(id);
  if (!job->book().first_step_ever() && LargestStep(facts) > 0)
    c.txn.MutableJob(id)->mutable_book()->set_first_step_ever(true);
  job = c.txn.FindJob(id);
  const uint32_t world = WorldSize(job->status().placement());
  if (job->status().state() == v1::JOB_STATE_STARTING &&
      AllRanksAre(facts, world, RankHasStarted)) {
    c.txn.MutableJob(id)->set_running_wall_ns(c.now.wall_ns);
    Step(c, c.txn.MutableJob(id), JobEvent::kAllRunning, "");
    AddJobEvent(c, *c.txn.FindJob(id), "job.running", absl::StrCat(world, " rank(s) run"));
    Facts* all = &c.facts;
    const int64_t now_ns = c.now.mono_ns;
    c.txn.AfterCommit([all, id, now_ns] { all->jobs[id].running_since_ns = now_ns; });
  }
}

// Remaining time is kept on the monotonic clock; the wall clock only bridges a restart of the
// scheduler.
bool TimeIsUp(Cycle& c, const records::JobRecord& job) {
  const int64_t limit_ns = static_cast<int64_t>(job.status().spec().time_limit_s()) * kNsPerSec;
  if (limit_ns == 0 || job.status().started_wall_ns() == 0) return false;
  JobFacts& facts = c.job_facts(job.status().id());
  if (facts.deadline_ns == 0) {
    const int64_t used_ns =
        std::clamp<int64_t>(c.now.wall_ns - job.status().started_wall_ns(), 0, limit_ns);
    facts.deadline_ns = c.now.mono_ns + limit_ns - used_ns;
  }
  return c.now.mono_ns >= facts.deadline_ns;
}

std::string TimeLimitText(const records::JobRecord& job) {
  return absl::StrCat("time limit of ", job.status().spec().time_limit_s(), " s");
}

const records::CheckpointRecord* CommittedAt(Cycle& c, const records::JobRecord& job,
                                             uint64_t step) {
  const records::CheckpointRecord* record =
      c.txn.FindCheckpoint(job.status().id(), {job.last_run_attempt(), step});
  if (record != nullptr && !record->aborted()) return record;
  // The attempt may have started from that very step.
  const v1::CheckpointRef newest = NewestCheckpoint(c, job);
  if (newest.attempt() == 0 || newest.step() != step) return nullptr;
  return c.txn.FindCheckpoint(job.status().id(), {newest.attempt(), newest.step()});
}

// Any one copy of the commit record proves the checkpoint, so one store that has it is enough.
bool IsWritten(Cycle& c, const records::JobRecord& job, const Point& point) {
  JobFacts& facts = c.job_facts(job.status().id());
  if (facts.written.count(point)) return true;
  if (point.attempt != job.last_run_attempt())
    return true;  // an older attempt's: written long ago, this one began from it
  bool ordered = false;
  for (const auto& node : job.status().placement().nodes()) {
    const auto orders = facts.orders.find(node.node());
    ordered |= orders != facts.orders.end() && orders->second.count(point);
  }
  if (!ordered) RepeatCommitOrders(c, job, point);
  return false;
}

void FinishIfCommitted(Cycle& c, uint64_t id) {
  const records::JobRecord* job = c.txn.FindJob(id);
  const uint64_t step = job->last_step();
  if (step > 0) {
    const records::CheckpointRecord* committed = CommittedAt(c, *job, step);
    if (committed == nullptr) return;
    if (!IsWritten(c, *job, {committed->ref().attempt(), committed->ref().step()})) return;
  }
  EndJob(c, id, JobEvent::kEndDone,
         step > 0 ? absl::StrCat("the checkpoint of the last step, ", step, ", is committed") : "");
}

void SettleAllEndedWell(Cycle& c, uint64_t id) {
  JobFacts& facts = c.job_facts(id);
  SettleSaves(c, id);
  records::JobRecord* job = c.txn.MutableJob(id);
  // An attempt that began at the last step has nothing left to do, but that step must be committed
  // all the same.
  // (Of a command it is known only for its own points: it may take another job's for something
  // else.)
  const v1::CheckpointRef& start = job->status().start_point().ref();
  const bool saves_it = start.job() == id || !job->status().spec().trainer_config().empty();
  const uint64_t last_step = std::max(LargestStep(facts), saves_it ? start.step() : 0);
  job->mutable_status()->set_step(last_step);
  if (!ExpectsCheckpoints(job->status().spec()) || last_step == 0) {
    EndJob(c, id, JobEvent::kEndDone, "all ranks exited with 0");
    return;
  }
  job->set_last_step(last_step);
  facts.all_ended_ns = c.now.mono_ns;
  Step(c, job, JobEvent::kAllEndedWell,
       absl::StrCat("waits for the checkpoint of the last step, ", job->last_step()));
  FinishIfCommitted(c, id);
}

void SettleRun(Cycle& c, uint64_t id) {
  NoteProgressOfRun(c, id);
  SettleSaves(c, id);
  NoteCompleteSnapshots(c, *c.txn.FindJob(id));
  FollowIncident(c, id);
  const records::JobRecord* job = c.txn.FindJob(id);
  std::vector<RankFailure> failures = CollectFailures(c, *job, c.now.mono_ns + 1);
  if (failures.empty()) failures = WatchLive(c, id);
  if (!failures.empty()) {
    NoteActedStops(c, id, failures);
    BeginRecovery(c, id, failures);
    return;
  }
  if (AllRanksAre(c.job_facts(id), WorldSize(job->status().placement()), RankEndedWell)) {
    SettleAllEndedWell(c, id);
    return;
  }
  if (TimeIsUp(c, *job))
    OrderStop(c, id, records::STOP_INTENT_TIME_LIMIT, /*graceful=*/true, TimeLimitText(*job));
}

void SettleCommitting(Cycle& c, uint64_t id) {
  SettleSaves(c, id);
  FollowIncident(c, id);
  FinishIfCommitted(c, id);
  const records::JobRecord* job = c.txn.FindJob(id);
  if (job->status().state() != v1::JOB_STATE_COMMITTING ||
      CommittedAt(c, *job, job->last_step()) != nullptr)
    return;
  JobFacts& facts = c.job_facts(id);
  if (facts.all_ended_ns == 0) facts.all_ended_ns = c.now.mono_ns;
  const records::CheckpointRecord* aborted =
      c.txn.FindCheckpoint(id, {job->last_run_attempt(), job->last_step()});
  std::string why;
  std::string node;
  if (aborted != nullptr) {
    why = aborted->why();
  } else if (SinceMs(facts.all_ended_ns, c.now.mono_ns) >= static_cast<double>(kCommitWaitMs)) {
    why =
        absl::StrCat("it did not come within ", kCommitWaitMs / 1000, " s of the last rank's exit");
  }
  for (const auto& placed : job->status().placement().nodes()) {
    if (!IsLost(c, placed.node())) continue;
    node = placed.node();
    why = absl::StrCat("node ", node, " was lost with its part");
  }
  if (why.empty()) return;
  RankFailure failure;
  failure.rank = 0;
  failure.node = node.empty() ? NodeOfRank(job->status().placement(), 0) : node;
  failure.kind = node.empty() ? FailureKind::kSaveFailed : FailureKind::kNodeLost;
  failure.step = job->last_step();
  failure.at_mono_ns = c.now.mono_ns;
  failure.detail = absl::StrCat("the checkpoint of the last step, ", job->last_step(),
                                ", could not be committed: ", why);
  BeginRecovery(c, id, {failure});
}

bool LastSaveIsPending(Cycle& c, const records::JobRecord& job) {
  JobFacts& facts = c.job_facts(job.status().id());
  if (!job.graceful_stop()) return false;
  if (facts.all_stopped_ns == 0) facts.all_stopped_ns = c.now.mono_ns;
  if (SinceMs(facts.all_stopped_ns, c.now.mono_ns) >= static_cast<double>(kLastSaveWaitMs))
    return false;
  for (const auto& [point, save] : facts.saves.open()) {
    if (c.txn.FindCheckpoint(job.status().id(), point) == nullptr) return true;
  }
  // The ranks do not wait for their last snapshot to be written: no node may have told of it yet.
  const Point last = facts.newest_persist;
  return last.attempt == job.last_run_attempt() &&
         c.txn.FindCheckpoint(job.status().id(), last) == nullptr;
}

void SettleStopping(Cycle& c, uint64_t id) {
  SettleSaves(c, id);
  const records::JobRecord* job = c.txn.FindJob(id);
  const StopProgress progress = WhatStillRuns(c, *job);
  JobFacts& facts = c.job_facts(id);
  facts.waiting = progress.waiting_for;
  if (!progress.reachable_stopped) return;
  if (LastSaveIsPending(c, *job)) {
    facts.waiting = "waits for the last save";
    return;
  }
  const std::string detail = job->intent_detail();
  switch (job->intent()) {
    case records::STOP_INTENT_CANCEL:
    case records::STOP_INTENT_UNSPECIFIED:
      EndJob(c, id, JobEvent::kEndCancelled, detail);
      return;
    case records::STOP_INTENT_TIME_LIMIT:
      EndJob(c, id, JobEvent::kEndFailed, detail);
      return;
    case records::STOP_INTENT_DRAIN:
    case records::STOP_INTENT_PREEMPT:
      break;
    default:
      EndJob(c, id, JobEvent::kEndCancelled, detail);
      return;
  }
  const v1::JobSpec& spec = job->status().spec();
  if (job->intent() == records::STOP_INTENT_PREEMPT && spec.has_requeue() && !spec.requeue()) {
    EndJob(c, id, JobEvent::kEndPreempted, detail);
    return;
  }
  records::JobRecord* changed = c.txn.MutableJob(id);
  changed->set_recovering(true);
  changed->set_intent(records::STOP_INTENT_UNSPECIFIED);
  changed->set_graceful_stop(false);
  Step(c, changed, JobEvent::kRequeued, absl::StrCat(detail, "; goes on elsewhere"));
  facts.queued_since_ns = c.now.mono_ns;
  AddJobEvent(c, *changed, "job.requeued", detail);
  FollowHolds(c, id);
}

void ForgetFactsIfSettled(Cycle& c, uint64_t id) {
  const records::JobRecord* job = c.txn.FindJob(id);
  const auto facts = c.facts.jobs.find(id);
  if (facts == c.facts.jobs.end()) return;
  if (job != nullptr &&
      (!IsEnded(job->status().state()) || job->holds_size() > 0 || !facts->second.orders.empty()))
    return;
  for (const auto& [name, node] : facts->second.nodes) {
    if (node.known) return;
  }
  Facts* all = &c.facts;
  c.txn.AfterCommit([all, id] { all->jobs.erase(id); });
}

}  // namespace

void FollowHolds(Cycle& c, uint64_t id) {
  const records::JobRecord* job = c.txn.FindJob(id);
  JobFacts& facts = c.job_facts(id);
  const v1::JobState state = job->status().state();
  const bool keep_reserved = state == v1::JOB_STATE_RECOVERING || state == v1::JOB_STATE_STOPPING;
  bool changed = false;
  std::vector<records::NodeHold> holds;
  for (records::NodeHold hold : job->holds()) {
    const bool runs_here =
        MayRun(state) && PlacementOn(job->status().placement(), hold.node()) != nullptr;
    if (!runs_here && !hold.stopped()) {
      NodeOfJob& node = facts.nodes[hold.node()];
      if (!node.stop_ordered) {
        node.stop_ordered = true;
        node.stop_delivered = false;
        node.levels_since = 0;
        c.dirty_nodes.insert(hold.node());
      }
      if (NodeHasStopped(node, job->last_run_attempt())) {
        hold.set_stopped(true);
        changed = true;
      }
    }
    if (!runs_here && hold.stopped() && !keep_reserved) {
      changed = true;
      c.queue_dirty = true;
      c.dirty_nodes.insert(hold.node());
      continue;
    }
    holds.push_back(std::move(hold));
  }
  if (!changed) return;
  *c.txn.MutableJob(id)->mutable_holds() = {holds.begin(), holds.end()};
}

StopProgress WhatStillRuns(Cycle& c, const records::JobRecord& job) {
  StopProgress progress;
  const JobFacts& facts = c.job_facts(job.status().id());
  for (const auto& hold : job.holds()) {
    if (IsLost(c, hold.node())) continue;
    const auto node = facts.nodes.find(hold.node());
    // After a restart of the scheduler a stopped node has yet to say what its memory holds.
    const bool level = c.facts.nodes[hold.node()].level_seen;
    const bool dirty =
        node != facts.nodes.end() && !node->second.dirty_reason.empty() && !node->second.clean;
    if ((hold.stopped() && level) || dirty) continue;
    progress.reachable_stopped = false;
    absl::StrAppend(&progress.waiting_for, progress.waiting_for.empty() ? "waits for " : ", ",
                    hold.node(), hold.stopped() ? " to report" : " to stop its ranks");
  }
  return progress;
}

void EndJob(Cycle& c, uint64_t id, JobEvent event, const std::string& reason) {
  SettleSaves(c, id);
  AbortOpenSaves(c, id, "the job ended");
  records::JobRecord* job = c.txn.MutableJob(id);
  JobFacts& facts = c.job_facts(id);
  if (facts.attempt == job->last_run_attempt() && !facts.ranks.empty()) {
    job->mutable_status()->set_step(std::max(job->status().step(), SmallestStep(facts)));
    const auto first = facts.ranks.find(0);
    if (first != facts.ranks.end() && first->second.has_loss)
      job->mutable_status()->set_loss(first->second.loss);
  }
  facts.waiting.clear();
  CloseLedger(c, id, absl::StrCat("the job ended: ", reason));
  Step(c, job, event, reason);
  CloseIncident(c, job, absl::StrCat("the job ended ", StateName(job->status().state())));
  job->set_recovering(false);
  const std::string kind = event == JobEvent::kEndDone        ? "job.done"
                           : event == JobEvent::kEndCancelled ? "job.cancelled"
                           : event == JobEvent::kEndPreempted ? "job.preempted"
                                                              : "job.failed";
  AddJobEvent(c, *job, kind, reason);
  FollowHolds(c, id);
  c.queue_dirty = true;
}

void OrderStop(Cycle& c, uint64_t id, records::StopIntent intent, bool graceful,
               const std::string& detail) {
  records::JobRecord* job = c.txn.MutableJob(id);
  const v1::JobState state = job->status().state();
  job->set_intent(intent);
  job->set_intent_detail(detail);
  if (state == v1::JOB_STATE_QUEUED) {
    EndJob(
        c, id,
        intent == records::STOP_INTENT_TIME_LIMIT ? JobEvent::kEndFailed : JobEvent::kEndCancelled,
        detail);
    return;
  }
  // What is being killed already is not asked politely any more.
  const bool killing = state == v1::JOB_STATE_RECOVERING ||
                       (state == v1::JOB_STATE_STOPPING && !job->graceful_stop());
  job->set_graceful_stop(graceful && !killing);
  CloseLedger(c, id, absl::StrCat("the job was stopped: ", detail));
  Step(c, job, JobEvent::kStopOrdered, detail);
  JobFacts& facts = c.job_facts(id);
  facts.all_stopped_ns = 0;
  AddJobEvent(c, *job, "job.stopping", detail);
  FollowHolds(c, id);
  SettleStopping(c, id);
}

void SettleJob(Cycle& c, uint64_t id) {
  if (c.txn.FindJob(id) == nullptr) {
    ForgetFactsIfSettled(c, id);
    return;
  }
  JobFacts& facts = c.job_facts(id);
  if (facts.attempt != c.txn.FindJob(id)->last_run_attempt()) {  // after a restart of the scheduler
    const records::JobRecord& known = *c.txn.FindJob(id);
    facts.attempt = known.last_run_attempt();
    facts.ranks.clear();
    if (known.status().state() == v1::JOB_STATE_RUNNING && known.running_wall_ns() > 0) {
      const int64_t age_ns = std::max<int64_t>(0, c.now.wall_ns - known.running_wall_ns());
      facts.running_since_ns = std::max<int64_t>(1, c.now.mono_ns - age_ns);
    }
  }
  FollowHolds(c, id);
  const records::JobRecord* job = c.txn.FindJob(id);
  switch (job->status().state()) {
    case v1::JOB_STATE_QUEUED:
      if (TimeIsUp(c, *job))
        OrderStop(c, id, records::STOP_INTENT_TIME_LIMIT, false, TimeLimitText(*job));
      break;
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      SettleRun(c, id);
      break;
    case v1::JOB_STATE_COMMITTING:
      SettleCommitting(c, id);
      break;
    case v1::JOB_STATE_RECOVERING:
      if (TimeIsUp(c, *job)) {
        OrderStop(c, id, records::STOP_INTENT_TIME_LIMIT, false, TimeLimitText(*job));
      } else {
        SettleRecovery(c, id);
      }
      break;
    case v1::JOB_STATE_STOPPING:
      SettleStopping(c, id);
      break;
    default:
      ForgetFactsIfSettled(c, id);
      break;
  }
}

}  // namespace holdfast::sched
