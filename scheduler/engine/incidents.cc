// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/incidents.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/text.h"

namespace holdfast::sched {
namespace {

constexpr size_t kDetailBytesMax = 8 << 10;

v1::Incident* Find(records::JobRecord* job, uint64_t id) {
  for (auto& incident : *job->mutable_status()->mutable_incidents()) {
    if (incident.id() == id) return &incident;
  }
  return nullptr;
}

void MakeRoom(records::JobRecord* job) {
  auto* incidents = job->mutable_status()->mutable_incidents();
  while (incidents->size() >= kIncidentsPerJobMax) incidents->erase(incidents->begin());
}

void Describe(const Cause& cause, v1::Incident* incident) {
  incident->set_fault_class(cause.fault_class);
  incident->mutable_ranks()->Assign(cause.ranks.begin(), cause.ranks.end());
  incident->mutable_victims()->Assign(cause.victims.begin(), cause.victims.end());
  incident->set_node(cause.node);
  incident->set_what(cause.what);
  incident->set_detail(proto::HeadUtf8(cause.detail, kDetailBytesMax));
}

}  // namespace

v1::Incident* OpenIncident(records::JobRecord* job) {
  return job->open_incident() == 0 ? nullptr : Find(job, job->open_incident());
}

void BeginIncident(Cycle& c, records::JobRecord* job, const Cause& cause, uint64_t attempt_hit) {
  if (v1::Incident* before = OpenIncident(job)) {
    before->set_closed(true);
    AddJobEvent(c, *job, "incident.closed", "another fault came before the first step", "", before);
  }
  MakeRoom(job);
  v1::Incident* incident = job->mutable_status()->add_incidents();
  incident->set_id(c.txn.NextIncidentId());
  incident->set_job(job->status().id());
  incident->set_attempt(attempt_hit);
  Describe(cause, incident);
  incident->set_acted(true);
  const double since_ms = SinceMs(cause.root.at_mono_ns, c.now.mono_ns);
  incident->set_begin_wall_ns(c.now.wall_ns -
                              (c.now.mono_ns - std::min(cause.root.at_mono_ns, c.now.mono_ns)));
  incident->set_noticed_ms(since_ms);
  incident->set_named_ms(since_ms);
  job->set_open_incident(incident->id());
  AddJobEvent(c, *job, "incident.opened", incident->what(), incident->node(), incident);
}

void RenameIncident(Cycle& c, records::JobRecord* job, const Cause& cause) {
  v1::Incident* incident = OpenIncident(job);
  if (incident == nullptr) return;
  const v1::Incident before = *incident;
  Describe(cause, incident);
  const bool renamed =
      before.fault_class() != incident->fault_class() || before.what() != incident->what();
  if (renamed) {
    incident->set_named_ms(SinceMs(c.facts.jobs[job->status().id()].fault_ns, c.now.mono_ns));
    AddJobEvent(c, *job, "incident.named", incident->what(), incident->node(), incident);
  }
}

void CloseIncident(Cycle& c, records::JobRecord* job, const std::string& how) {
  v1::Incident* incident = OpenIncident(job);
  job->set_open_incident(0);
  if (incident == nullptr) return;
  incident->set_closed(true);
  AddJobEvent(c, *job, "incident.closed", absl::StrCat(incident->what(), "; ", how),
              incident->node(), incident);
}

void AddSideIncident(Cycle& c, uint64_t id, v1::FaultClass fault_class, const std::string& node,
                     const std::string& what) {
  records::JobRecord* job = c.txn.MutableJob(id);
  MakeRoom(job);
  v1::Incident* incident = job->mutable_status()->add_incidents();
  incident->set_id(c.txn.NextIncidentId());
  incident->set_job(id);
  incident->set_attempt(job->last_run_attempt());
  incident->set_fault_class(fault_class);
  incident->set_node(node);
  incident->set_what(what);
  incident->set_begin_wall_ns(c.now.wall_ns);
  incident->set_closed(true);
  AddJobEvent(c, *job, "incident.opened", what, node, incident);
}

void CountSideIncident(Cycle& c, uint64_t id, v1::FaultClass fault_class, const std::string& node,
                       const std::string& what) {
  records::JobRecord* job = c.txn.MutableJob(id);
  const int count = job->status().incidents_size();
  if (count > 0) {
    v1::Incident* newest = job->mutable_status()->mutable_incidents(count - 1);
    if (newest->closed() && newest->rung() == 0 && newest->fault_class() == fault_class &&
        newest->node() == node && newest->attempt() == job->last_run_attempt()) {
      newest->set_repeats(newest->repeats() + 1);
      newest->set_newest_wall_ns(c.now.wall_ns);
      newest->set_what(what);
      return;
    }
  }
  AddSideIncident(c, id, fault_class, node, what);
}

void FollowIncident(Cycle& c, uint64_t id) {
  const records::JobRecord* job = c.txn.FindJob(id);
  if (job->open_incident() == 0) return;
  JobFacts& facts = c.job_facts(id);
  const uint32_t world = WorldSize(job->status().placement());
  if (facts.ranks.size() < world) return;
  int64_t restored_ns = 0, first_step_ns = 0;
  bool all_first = true, marked = false;
  for (const auto& [rank, f] : facts.ranks) {
    marked |= f.hello;
    all_first &= f.first_step > 0;
    restored_ns = std::max(restored_ns, f.restored_ns);
    first_step_ns = std::max(first_step_ns, f.first_step_ns);
  }
  // Ranks that never say hello show no steps: running is all that can be seen of them.
  const bool running = job->status().state() == v1::JOB_STATE_RUNNING ||
                       job->status().state() == v1::JOB_STATE_COMMITTING;
  const bool unmarked_done = running && !marked && !facts.hello_ever && facts.running_since_ns > 0;
  if (!all_first && !unmarked_done) return;
  records::JobRecord* changed = c.txn.MutableJob(id);
  v1::Incident* incident = OpenIncident(changed);
  if (incident != nullptr) {
    const int64_t last_ns = all_first ? first_step_ns : facts.running_since_ns;
    incident->set_restored_ms(SinceMs(facts.fault_ns, restored_ns > 0 ? restored_ns : last_ns));
    incident->set_first_step_ms(SinceMs(facts.fault_ns, last_ns));
  }
  CloseIncident(c, changed,
                all_first ? "all ranks have finished a step again" : "all ranks run again");
}

}  // namespace holdfast::sched
