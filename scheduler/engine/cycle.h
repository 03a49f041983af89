// SPDX-License-Identifier: Apache-2.0
// One turn of the engine: facts have been updated from some input, now decisions are made in one
// transaction. Deterministic: the same state, facts and `now` give the same records.
#ifndef HOLDFAST_SCHEDULER_ENGINE_CYCLE_H_
#define HOLDFAST_SCHEDULER_ENGINE_CYCLE_H_

#include <set>
#include <string>

#include "proto/modes.h"
#include "scheduler/core/job_fsm.h"
#include "scheduler/engine/facts.h"
#include "scheduler/state.h"

namespace holdfast::sched {

struct EngineOptions {
  std::string default_store;  // checkpoint store directory of jobs that name none
  std::string user;           // who runs the scheduler
  uint32_t uid = 0;
  uint32_t gid = 0;
  proto::Modes modes;  // of causes that a job says nothing about
};

struct Cycle {
  Txn& txn;
  Facts& facts;
  const EngineOptions& options;
  Now now;
  std::set<std::string>& dirty_nodes;  // whose desired state may have changed
  bool& queue_dirty;                   // the queue should be tried

  JobFacts& job_facts(uint64_t job) { return facts.jobs[job]; }
};

// Takes `event` by the table; a refused transition is a bug and is reported as INTERNAL by the
// caller's Commit path.
void Step(Cycle& c, records::JobRecord* job, JobEvent event, const std::string& reason);

// All nodes that have to do with the job: placement, holds, mentions.
std::set<std::string> NodesOfJob(Cycle& c, const records::JobRecord& job);
void MarkDirty(Cycle& c, const records::JobRecord& job);

void AddJobEvent(Cycle& c, const records::JobRecord& job, const std::string& kind,
                 const std::string& text, const std::string& node = "",
                 const v1::Incident* incident = nullptr);
void AddNodeEvent(Cycle& c, const std::string& node, const std::string& kind,
                  const std::string& text);

// Node of a rank in the current placement; "" when it has none.
std::string NodeOfRank(const v1::Placement& placement, uint32_t rank);
const v1::NodePlacement* PlacementOn(const v1::Placement& placement, const std::string& node);
uint32_t WorldSize(const v1::Placement& placement);
bool ExpectsCheckpoints(const v1::JobSpec& spec);
bool IsLost(Cycle& c, const std::string& node);
double SinceMs(int64_t from_ns, int64_t to_ns);

// READY, SUSPECT, LOST, DRAINING, DRAINED or DIRTY, with the reason.
v1::NodeState StateOfNode(Cycle& c, const records::NodeRecord& node, std::string* reason);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_CYCLE_H_
