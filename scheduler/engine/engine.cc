// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/engine.h"

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/engine/desired.h"
#include "scheduler/engine/job_flow.h"
#include "scheduler/engine/recovery.h"
#include "scheduler/engine/reports.h"
#include "scheduler/store/record_codec.h"

namespace holdfast::sched {
namespace {

constexpr int64_t kQueueRetryNs =
    kNsPerSec;  // for what changes by time alone (a held place in the queue)

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(StateStore* store, EngineOptions options,
                                                     Now now) {
  std::unique_ptr<Engine> engine(new Engine(store, std::move(options)));
  HF_ASSIGN_OR_RETURN(engine->state_, LoadState(*store));
  for (const auto& [name, node] : engine->state_.nodes)
    engine->facts_.nodes[name].last_beat_ns = now.mono_ns;
  HF_RETURN_IF_ERROR(engine->Run(now, nullptr, [&](Cycle& c) {
    c.txn.MutateMeta([](records::MetaRecord* meta) { meta->set_epoch(meta->epoch() + 1); });
    return absl::OkStatus();
  }));
  return engine;
}

absl::Status Engine::Run(Now now, const std::set<uint64_t>* jobs,
                         const std::function<absl::Status(Cycle&)>& decide) {
  Txn txn(&state_, store_, now);
  Cycle c{txn, facts_, options_, now, dirty_nodes_, queue_dirty_};
  HF_RETURN_IF_ERROR(decide(c));
  std::set<uint64_t> to_settle;
  if (jobs != nullptr) {
    to_settle = *jobs;
  } else {
    const std::vector<uint64_t> active = txn.ActiveJobs();
    to_settle.insert(active.begin(), active.end());
    for (const auto& [id, facts] : facts_.jobs) to_settle.insert(id);
  }
  for (const uint64_t id : to_settle) SettleJob(c, id);
  if (queue_dirty_ || now.mono_ns - queue_tried_ns_ >= kQueueRetryNs) {
    queue_dirty_ = false;
    queue_tried_ns_ = now.mono_ns;
    RunQueue(c);
  }
  const absl::Status committed = txn.Commit();
  if (!committed.ok()) queue_dirty_ = true;  // decided in vain: the next turn decides again
  return committed;
}

std::set<uint64_t> Engine::JobsOnNode(const std::string& node) const {
  std::set<uint64_t> jobs;
  if (const auto facts = facts_.nodes.find(node); facts != facts_.nodes.end())
    jobs = facts->second.jobs;
  for (const uint64_t id : state_.active) {
    const records::JobRecord& job = state_.jobs.at(id);
    if (PlacementOn(job.status().placement(), node) != nullptr) jobs.insert(id);
    for (const auto& hold : job.holds()) {
      if (hold.node() == node) jobs.insert(id);
    }
  }
  return jobs;
}

v1::DesiredState Engine::Desired(const std::string& node) const {
  v1::DesiredState desired = BuildDesired(state_, facts_, node);
  desired.set_scheduler_epoch(epoch());
  return desired;
}

void Engine::NoteDesiredSent(const std::string& node, const v1::DesiredState& desired) {
  sched::NoteDesiredSent(facts_, node, desired);
}

Changes Engine::TakeChanges() {
  Changes changes;
  changes.nodes.swap(dirty_nodes_);
  changes.last_event = state_.last_event;
  return changes;
}

absl::Status Engine::Tick(Now now) {
  ForgiveOwnStall(now);
  return Run(now, nullptr, [&](Cycle& c) {
    JudgeNodes(c);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<v1::Event>> Engine::Events(uint64_t after, size_t limit,
                                                      uint64_t job) const {
  std::vector<v1::Event> events;
  absl::Status decoded;
  const std::string start = after == 0 ? "" : NumberKey(RecordKind::kEvent, after);
  HF_RETURN_IF_ERROR(store_->Scan(KindPrefix(RecordKind::kEvent), start,
                                  [&](std::string_view key, std::string_view value) {
                                    v1::Event event;
                                    decoded = DecodeRecord(RecordKind::kEvent, key, value, &event);
                                    if (!decoded.ok()) return false;
                                    if (job == 0 || event.job() == job)
                                      events.push_back(std::move(event));
                                    return events.size() < limit;
                                  }));
  HF_RETURN_IF_ERROR(decoded);
  return events;
}

}  // namespace holdfast::sched
