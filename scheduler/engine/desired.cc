// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/desired.h"

#include "base/limits.h"
#include "base/rank/recorder.h"
#include "scheduler/core/job_fsm.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {
namespace {

// Of commit records in one state, which is one message; the next state carries the rest. One record
// has at most kCommitRecordBytesMax.
constexpr size_t kOrderBytesMax = kCommitRecordBytesMax;

bool Runs(v1::JobState state) {
  return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING ||
         state == v1::JOB_STATE_COMMITTING;
}

const records::NodeHold* HoldOn(const records::JobRecord& job, const std::string& node) {
  for (const auto& hold : job.holds()) {
    if (hold.node() == node) return &hold;
  }
  return nullptr;
}

uint32_t ReasonOf(records::StopIntent intent) {
  switch (intent) {
    case records::STOP_INTENT_CANCEL:
      return rank::kStopCancel;
    case records::STOP_INTENT_DRAIN:
      return rank::kStopDrain;
    case records::STOP_INTENT_PREEMPT:
      return rank::kStopPreempt;
    case records::STOP_INTENT_TIME_LIMIT:
      return rank::kStopTimeLimit;
    default:
      return rank::kStopRecovery;
  }
}

void FillStop(const records::JobRecord& job, v1::DesiredJob* out) {
  out->set_phase(v1::DESIRED_PHASE_STOP);
  out->set_stop(v1::STOP_KIND_KILL);
  out->set_stop_reason(rank::kStopRecovery);
  // Only a job that is being stopped on request, and whose ranks are of the newest attempt, is
  // asked politely.
  const bool asked = job.status().state() == v1::JOB_STATE_STOPPING &&
                     job.status().attempt() == job.last_run_attempt();
  if (!asked) return;
  out->set_stop(job.graceful_stop() ? v1::STOP_KIND_GRACEFUL : v1::STOP_KIND_TERM);
  out->set_grace_s(job.status().spec().grace_s());
  out->set_stop_reason(ReasonOf(job.intent()));
}

void FillRun(const State& state, const JobFacts* facts, const records::JobRecord& job,
             const std::string& node, v1::DesiredJob* out) {
  out->set_phase(v1::DESIRED_PHASE_RUN);
  const auto first = state.nodes.find(job.status().placement().nodes(0).node());
  if (first != state.nodes.end()) out->set_rendezvous_address(first->second.address());
  if (facts == nullptr) return;
  const auto serves = facts->nodes.find(job.status().placement().nodes(0).node());
  if (serves != facts->nodes.end() && serves->second.attempt == job.last_run_attempt())
    out->set_master_port(serves->second.master_port);
  out->set_newest_complete_step(facts->newest_complete_step);
  std::vector<uint32_t> ranks;
  for (const auto& rank : PlacementOn(job.status().placement(), node)->ranks())
    ranks.push_back(rank.rank());
  out->set_prepared_ack_step(facts->saves.AckStep(job.last_run_attempt(), ranks));
}

// Nothing of the job is to be here. False: it need not be mentioned.
bool FillAbsent(const JobFacts* facts, const records::JobRecord& job, const std::string& node,
                bool orders, v1::DesiredJob* out) {
  const records::NodeHold* hold = HoldOn(job, node);
  const auto mention = facts == nullptr ? decltype(facts->nodes.end())() : facts->nodes.find(node);
  const bool known = facts != nullptr && mention != facts->nodes.end() && mention->second.known;
  const v1::JobState state = job.status().state();
  const bool keeps_memory =
      !IsEnded(state) && !Runs(state);  // what its arenas hold may be where the next attempt starts
  if (hold != nullptr || orders || (known && keeps_memory)) {
    FillStop(job, out);
    return true;
  }
  if (!known) return false;
  FillStop(job, out);
  out->set_phase(v1::DESIRED_PHASE_FORGET);
  return true;
}

}  // namespace

v1::DesiredState BuildDesired(const State& state, const Facts& all, const std::string& node) {
  v1::DesiredState desired;
  size_t order_bytes = 0;
  std::set<uint64_t> ids = state.active;
  for (const auto& [id, facts] : all.jobs) ids.insert(id);
  for (const uint64_t id : ids) {
    const auto job = state.jobs.find(id);
    if (job == state.jobs.end()) continue;
    const auto found = all.jobs.find(id);
    const JobFacts* facts = found == all.jobs.end() ? nullptr : &found->second;
    const records::JobRecord& record = job->second;
    v1::DesiredJob out;
    bool orders = false;
    if (facts != nullptr) {
      if (const auto on_node = facts->orders.find(node); on_node != facts->orders.end()) {
        orders = !on_node->second.empty();
        for (const auto& [point, pending] : on_node->second) {
          const size_t bytes = pending.order.record().size();
          if (order_bytes > 0 && order_bytes + bytes > kOrderBytesMax) break;
          order_bytes += bytes;
          *out.add_commits() = pending.order;
        }
      }
    }
    if (Runs(record.status().state()) &&
        PlacementOn(record.status().placement(), node) != nullptr) {
      FillRun(state, facts, record, node, &out);
    } else if (!FillAbsent(facts, record, node, orders, &out)) {
      continue;
    }
    out.set_job(id);
    out.set_attempt(record.status().attempt());
    *out.mutable_spec() = record.status().spec();
    *out.mutable_placement() = record.status().placement();
    *out.mutable_start_point() = record.status().start_point();
    out.set_store(record.store());
    out.set_save_requests(record.save_requests());
    *desired.add_jobs() = std::move(out);
  }
  return desired;
}

}  // namespace holdfast::sched
