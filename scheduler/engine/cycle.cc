// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/cycle.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"

namespace holdfast::sched {

void Step(Cycle& c, records::JobRecord* job, JobEvent event, const std::string& reason) {
  const absl::StatusOr<v1::JobState> next = NextState(job->status().state(), event);
  if (!next.ok()) {
    // Every caller checks the state first; going on would write a state that the table forbids.
    std::fprintf(stderr, "holdfast-scheduler: %s: %s\n",
                 ToString(JobId{job->status().id()}).c_str(), next.status().ToString().c_str());
    std::abort();
  }
  job->mutable_status()->set_state(*next);
  job->mutable_status()->set_reason(reason);
  if (IsEnded(*next)) job->mutable_status()->set_ended_wall_ns(c.now.wall_ns);
  if (*next == v1::JOB_STATE_QUEUED) c.queue_dirty = true;
  MarkDirty(c, *job);
}

std::set<std::string> NodesOfJob(Cycle& c, const records::JobRecord& job) {
  std::set<std::string> nodes;
  for (const auto& node : job.status().placement().nodes()) nodes.insert(node.node());
  for (const auto& hold : job.holds()) nodes.insert(hold.node());
  const auto facts = c.facts.jobs.find(job.status().id());
  if (facts == c.facts.jobs.end()) return nodes;
  for (const auto& [name, node] : facts->second.nodes) nodes.insert(name);
  for (const auto& [name, orders] : facts->second.orders) nodes.insert(name);
  return nodes;
}

void MarkDirty(Cycle& c, const records::JobRecord& job) {
  for (const std::string& node : NodesOfJob(c, job)) c.dirty_nodes.insert(node);
}

void AddJobEvent(Cycle& c, const records::JobRecord& job, const std::string& kind,
                 const std::string& text, const std::string& node, const v1::Incident* incident) {
  v1::Event event;
  event.set_kind(kind);
  event.set_job(job.status().id());
  // A fault raises the attempt at once; what is told of it belongs to the one that it struck.
  const bool of_a_rank = kind.rfind("rank.", 0) == 0;
  event.set_attempt(incident != nullptr ? incident->attempt()
                    : of_a_rank         ? job.last_run_attempt()
                                        : job.status().attempt());
  event.set_node(node);
  event.set_text(text);
  if (incident != nullptr) *event.mutable_incident() = *incident;
  c.txn.AddEvent(std::move(event));
}

void AddNodeEvent(Cycle& c, const std::string& node, const std::string& kind,
                  const std::string& text) {
  v1::Event event;
  event.set_kind(kind);
  event.set_node(node);
  event.set_text(text);
  c.txn.AddEvent(std::move(event));
}

std::string NodeOfRank(const v1::Placement& placement, uint32_t rank) {
  for (const auto& node : placement.nodes()) {
    for (const auto& r : node.ranks()) {
      if (r.rank() == rank) return node.node();
    }
  }
  return "";
}

const v1::NodePlacement* PlacementOn(const v1::Placement& placement, const std::string& node) {
  for (const auto& n : placement.nodes()) {
    if (n.node() == node) return &n;
  }
  return nullptr;
}

uint32_t WorldSize(const v1::Placement& placement) {
  uint32_t ranks = 0;
  for (const auto& node : placement.nodes()) ranks += static_cast<uint32_t>(node.ranks_size());
  return ranks;
}

bool ExpectsCheckpoints(const v1::JobSpec& spec) {
  return spec.expects_checkpoints() || spec.persist_every_steps() > 0 ||
         !spec.trainer_config().empty();
}

bool IsLost(Cycle& c, const std::string& node) {
  const records::NodeRecord* record = c.txn.FindNode(node);
  return record == nullptr || record->lost();
}

double SinceMs(int64_t from_ns, int64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / static_cast<double>(kNsPerMs)
                         : 0.0;
}

namespace {

// Processes that a stop could not remove keep a node out of use until they are gone.
std::string DirtyReason(Cycle& c, const std::string& node) {
  for (const uint64_t id : c.txn.ActiveJobs()) {
    const auto facts = c.facts.jobs.find(id);
    if (facts == c.facts.jobs.end()) continue;
    const auto on_node = facts->second.nodes.find(node);
    if (on_node == facts->second.nodes.end() || on_node->second.dirty_reason.empty() ||
        on_node->second.clean)
      continue;
    return absl::StrCat(ToString(JobId{id}), ": ", on_node->second.dirty_reason);
  }
  return "";
}

bool HasHolds(Cycle& c, const std::string& node) {
  for (const uint64_t id : c.txn.ActiveJobs()) {
    for (const auto& hold : c.txn.FindJob(id)->holds()) {
      if (hold.node() == node) return true;
    }
  }
  return false;
}

}  // namespace

v1::NodeState StateOfNode(Cycle& c, const records::NodeRecord& node, std::string* reason) {
  const NodeFacts& facts = c.facts.nodes[node.name()];
  if (node.lost()) {
    *reason = node.lost_reason();
    return v1::NODE_STATE_LOST;
  }
  *reason = DirtyReason(c, node.name());
  if (reason->empty() && !facts.foreign.empty())
    *reason = absl::StrCat("runs what is none of its jobs: ", facts.foreign);
  if (!reason->empty()) return v1::NODE_STATE_DIRTY;
  if (node.cordoned()) {
    *reason = node.cordon_reason();
    return HasHolds(c, node.name()) ? v1::NODE_STATE_DRAINING : v1::NODE_STATE_DRAINED;
  }
  *reason = facts.reason;
  if (!facts.level_seen && facts.liveness == Liveness::kReady)
    *reason = "waits for its first report to this scheduler";
  if (!facts.level_seen || facts.liveness != Liveness::kReady) return v1::NODE_STATE_SUSPECT;
  return v1::NODE_STATE_READY;
}

}  // namespace holdfast::sched
