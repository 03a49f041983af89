// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/attempt.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "proto/text.h"
#include "scheduler/core/queue_order.h"
#include "scheduler/core/restart_policy.h"
#include "scheduler/engine/failures.h"
#include "scheduler/engine/incidents.h"
#include "scheduler/engine/recovery.h"
#include "scheduler/engine/saves.h"

namespace holdfast::sched {
namespace {

// spec.from was checked at submit; the highest attempt of that step wins when none is named.
v1::CheckpointRef ResolveFrom(Cycle& c, const v1::JobSpec& spec) {
  v1::CheckpointRef ref;
  const absl::StatusOr<CheckpointId> id = proto::ParseCheckpointName(spec.from());
  if (spec.from().empty() || !id.ok()) return ref;
  for (const auto& record : c.txn.Checkpoints(id->job.value)) {
    if (record.aborted() || record.ref().step() != id->step) continue;
    if (id->attempt != 0 && record.ref().attempt() != id->attempt) continue;
    ref = record.ref();
  }
  return ref;
}

void TakeDevices(Cycle& c, records::JobRecord* job, const v1::Placement& placement) {
  std::vector<records::NodeHold> holds;
  for (const auto& hold : job->holds()) {
    if (!hold.stopped() && PlacementOn(placement, hold.node()) == nullptr) holds.push_back(hold);
  }
  for (const auto& node : placement.nodes()) {
    records::NodeHold hold;
    hold.set_node(node.node());
    hold.set_boot_id(c.txn.FindNode(node.node())->boot_id());
    hold.set_attempt(job->status().attempt());
    for (const auto& rank : node.ranks()) {
      if (!rank.device_id().empty()) hold.add_device_ids(rank.device_id());
    }
    holds.push_back(std::move(hold));
  }
  *job->mutable_holds() = {holds.begin(), holds.end()};
}

// The lowest rung that was taken: same nodes, or another one.
uint32_t Rung(const v1::Placement& before, const v1::Placement& after) {
  for (const auto& node : after.nodes()) {
    if (PlacementOn(before, node.node()) == nullptr) return 3;
  }
  return 2;
}

void NoteRestart(const JobFacts& facts, records::JobRecord* job, const v1::Placement& placement,
                 const v1::StartPoint& start) {
  job->mutable_status()->set_restarts(job->status().restarts() + 1);
  v1::Incident* incident = OpenIncident(job);
  if (incident == nullptr) return;
  if (incident->rung() != 5) incident->set_rung(Rung(job->status().placement(), placement));
  *incident->mutable_restored_from() = start;
  // Ranks go on between the fault and their stop: what they finished then is lost too.
  const uint64_t at_the_end =
      facts.attempt == job->last_run_attempt() ? LargestStep(facts) : uint64_t{0};
  const uint64_t reached = std::max(job->status().step(), at_the_end);
  incident->set_steps_lost(reached > start.ref().step() ? reached - start.ref().step() : 0);
}

void ResetFacts(Facts* facts, uint64_t id, uint64_t attempt) {
  JobFacts& job = facts->jobs[id];
  job.attempt = attempt;
  job.ranks.clear();
  for (auto& [name, node] : job.nodes) {
    node.stop_ordered = node.stop_delivered = node.stop_complete = false;
    node.clean = node.ranks_ended =
        false;  // said of the attempt before; this one has yet to be heard of
    node.levels_since = 0;
  }
  job.newest_complete_step = 0;
  job.newest_complete_ns = 0;
  job.running_since_ns = job.all_ended_ns = job.all_stopped_ns = job.stop_ordered_ns = 0;
  job.first_failures.clear();
  job.waiting.clear();
  job.store_end.clear();
}

void QueueOne(Cycle& c, const QueueEntry& entry, std::string* blocked_by) {
  JobFacts& facts = c.job_facts(entry.job);
  if (facts.queued_since_ns == 0) facts.queued_since_ns = c.now.mono_ns;
  if (!blocked_by->empty()) {
    facts.waiting = absl::StrCat("waits behind ", *blocked_by);
    return;
  }
  const records::JobRecord* job = c.txn.FindJob(entry.job);
  // It may be queued because it was drained, or had no place, and lose a node then.
  if (!FencesAllow(c, *job, &facts.waiting)) return;
  const PlacementRequest request = RequestOf(*job);
  const std::vector<PlacementNode> nodes = NodesForPlacement(c, entry.job);
  const PlacementResult placed = Place(request, nodes);
  if (placed.placed) {
    StartAttempt(c, entry.job, placed.placement);
    return;
  }
  facts.waiting = placed.reason;
  const int64_t waited_ms = (c.now.mono_ns - facts.queued_since_ns) / kNsPerMs;
  if (BlocksThoseBehind(entry.recovering, CouldEverFit(request, nodes, false),
                        CouldEverFit(request, nodes, true), waited_ms)) {
    *blocked_by = absl::StrCat(ToString(JobId{entry.job}), ", which ", placed.reason);
  }
}

}  // namespace

PlacementRequest RequestOf(const records::JobRecord& job) {
  PlacementRequest request;
  request.nodes = std::max(1u, job.status().spec().nodes());
  request.gpus_per_node = job.status().spec().gpus_per_node();
  request.ranks_per_node = std::max(1u, job.status().spec().ranks_per_node());
  for (const auto& node : job.status().placement().nodes())
    request.preferred.push_back(node.node());
  return request;
}

v1::StartPoint ChooseStart(Cycle& c, records::JobRecord* job, const v1::Placement& placement) {
  const uint64_t id = job->status().id();
  const std::vector<records::AttemptLink> links(job->line().begin(), job->line().end());
  const Line line(id, links);
  StartRequest request;
  request.job = id;
  request.placement = &placement;
  request.arenas = &c.job_facts(id).arenas;
  request.line = &line;
  for (const auto& record : c.txn.Checkpoints(id)) {
    if (!record.aborted()) request.committed.push_back(record.ref());
  }
  request.damaged.assign(job->damaged().begin(), job->damaged().end());
  request.from = ResolveFrom(c, job->status().spec());
  request.wanted_step = job->restart_from_step();
  absl::StatusOr<v1::StartPoint> start = ChooseStartPoint(request);
  if (!start.ok()) {
    // It was there when the restart was ordered and is out of reach now (its node died): the newest
    // point instead, said so.
    AddJobEvent(c, *job, "job.start_point", std::string(start.status().message()));
    request.wanted_step = 0;
    start = ChooseStartPoint(request);
  }
  if (start->source() == v1::StartPoint::SOURCE_CHECKPOINT) {
    const records::CheckpointRecord* record =
        c.txn.FindCheckpoint(start->ref().job(), {start->ref().attempt(), start->ref().step()});
    if (record != nullptr) start->set_store(record->store());
  }
  return *start;
}

void StartAttempt(Cycle& c, uint64_t id, const v1::Placement& placement) {
  SettleSaves(c, id);
  AbortOpenSaves(c, id, "another attempt starts");
  records::JobRecord* job = c.txn.MutableJob(id);
  v1::JobStatus* status = job->mutable_status();
  if (status->attempt() == job->last_run_attempt()) status->set_attempt(status->attempt() + 1);
  const v1::StartPoint start = ChooseStart(c, job, placement);
  const bool again = job->last_run_attempt() > 0;
  if (again) NoteRestart(c.job_facts(id), job, placement, start);
  MarkDirty(c, *job);  // nodes of the old placement
  TakeDevices(c, job, placement);
  *status->mutable_placement() = placement;
  *status->mutable_start_point() = start;
  records::AttemptLink* link = job->add_line();
  link->set_attempt(status->attempt());
  *link->mutable_start() = start;
  std::vector<records::AttemptLink> links(job->line().begin(), job->line().end());
  PruneLine(id, &links);
  *job->mutable_line() = {links.begin(), links.end()};
  job->set_last_run_attempt(status->attempt());
  job->set_recovering(false);
  job->set_manual_restart(false);
  job->set_restart_from_step(0);
  job->set_fault_counted(false);
  if (status->started_wall_ns() == 0) status->set_started_wall_ns(c.now.wall_ns);
  status->set_restarts_left(RestartsMax(status->spec()) -
                            std::min(RestartsMax(status->spec()), job->book().used()));
  Step(c, job, JobEvent::kPlaced,
       absl::StrCat("attempt ", status->attempt(), " starts from ", DescribeStart(start)));
  AddJobEvent(c, *job, again ? "job.restarted" : "job.started", status->reason());
  Facts* facts = &c.facts;
  const uint64_t attempt = status->attempt();
  c.txn.AfterCommit([facts, id, attempt] { ResetFacts(facts, id, attempt); });
}

void RunQueue(Cycle& c) {
  std::vector<QueueEntry> queue;
  for (const uint64_t id : c.txn.ActiveJobs()) {
    const records::JobRecord* job = c.txn.FindJob(id);
    if (job->status().state() != v1::JOB_STATE_QUEUED) continue;
    queue.push_back({id, job->status().spec().priority(), job->recovering()});
  }
  SortQueue(&queue);
  std::string blocked_by;
  for (const QueueEntry& entry : queue) QueueOne(c, entry, &blocked_by);
}

}  // namespace holdfast::sched
