// SPDX-License-Identifier: Apache-2.0
#include "scheduler/testing/fake_cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/rank/recorder.h"
#include "gtest/gtest.h"
#include "proto/fence.h"

namespace holdfast::sched {
namespace {

constexpr int64_t kTickEveryMs = 100;
constexpr int kTurnsMax = 200;  // of one Pump: a cluster that never settles is a bug

EngineOptions Options() {
  EngineOptions options;
  options.default_store = "/store";
  options.uid = 1000;
  options.gid = 1000;
  options.user = "tester";
  return options;
}

}  // namespace

FakeCluster::FakeCluster(uint32_t nodes, uint32_t gpus) {
  RestartScheduler();
  for (uint32_t i = 0; i < nodes; ++i) AddNode(absl::StrCat("n", i), gpus);
  Pump();
}

void FakeCluster::AddNode(const std::string& name, uint32_t gpus) {
  nodes_.emplace(name, FakeNode(name, gpus));
  Register(nodes_.at(name));
}

void FakeCluster::Register(FakeNode& node) {
  const auto response = engine_->RegisterNode(node.Registration(clock_.MonoNs()), now());
  if (response.ok()) registered_.insert(node.name());
  last_desired_.erase(node.name());
}

void FakeCluster::RestartScheduler() {
  engine_.reset();
  store_ = std::make_unique<MemoryStore>(content_);
  auto engine = Engine::Open(store_.get(), Options(), now());
  ASSERT_TRUE(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
  registered_.clear();
  for (auto& [name, node] : nodes_) {
    if (node.up) Register(node);
  }
  if (!nodes_.empty()) Pump();
}

bool FakeCluster::DeliverTo(FakeNode& node) {
  if (!node.up || dead()) return false;
  if (!registered_.count(node.name())) Register(node);
  if (!registered_.count(node.name())) return false;
  if (!engine_->CheckAgent(node.name(), node.boot_id, node.epoch).ok()) {
    registered_.erase(node.name());
    Register(node);
    if (!registered_.count(node.name())) return false;
  }
  const v1::DesiredState desired = engine_->Desired(node.name());
  engine_->NoteDesiredSent(node.name(), desired);
  const std::string bytes = desired.SerializeAsString();
  std::string& last = last_desired_[node.name()];
  const bool again = node.undone && node.obey_stops && node.start_ranks;
  if (bytes == last && !again) return false;
  last = bytes;
  const v1::ReportEventsRequest request = node.Apply(desired, clock_.MonoNs());
  if (request.events_size() > 0) Report(node, request);
  return true;
}

void FakeCluster::Report(FakeNode& node, const v1::ReportEventsRequest& request) {
  if (!node.up || dead()) return;
  const absl::Status status = engine_->ReportEvents(request, now());
  EXPECT_TRUE(status.ok() || dead() || status.code() == absl::StatusCode::kFailedPrecondition)
      << status;
}

void FakeCluster::Pump() {
  for (int turn = 0; turn < kTurnsMax; ++turn) {
    bool changed = false;
    for (auto& [name, node] : nodes_) changed |= DeliverTo(node);
    if (dead()) return;
    CheckInvariants();
    if (!changed) return;
  }
  FAIL() << "the cluster does not settle";
}

void FakeCluster::Beat() {
  for (auto& [name, node] : nodes_) {
    if (!node.up || !registered_.count(name) || dead()) continue;
    const auto response = engine_->Beat(node.Beat(clock_.MonoNs()), now());
    if (!response.ok()) registered_.erase(name);
  }
}

void FakeCluster::AnswerProbes() {
  for (const ProbeTask& task : engine_->DueProbes(now())) {
    const FakeNode& neighbour = nodes_.at(task.neighbour);
    v1::ProbePeerResponse response;
    response.set_reachable(neighbour.up && nodes_.at(task.target).up);
    response.set_last_heard_age_ms(-1);
    const absl::Status status = engine_->NoteProbe(task, neighbour.up, response, now());
    EXPECT_TRUE(status.ok() || dead()) << status;
  }
}

void FakeCluster::Advance(int64_t ms) {
  for (int64_t passed = 0; passed < ms && !dead(); passed += kTickEveryMs) {
    clock_.AdvanceNs(kTickEveryMs * kNsPerMs);
    since_beat_ms_ += kTickEveryMs;
    if (since_beat_ms_ >= kBeatIntervalMs) {
      since_beat_ms_ = 0;
      Beat();
    }
    const absl::Status status = engine_->Tick(now());
    EXPECT_TRUE(status.ok() || dead()) << status;
    if (!dead()) AnswerProbes();
    Pump();
  }
}

uint64_t FakeCluster::Submit(const v1::JobSpec& spec, const std::string& key) {
  v1::SubmitJobRequest request;
  request.set_idempotency_key(key.empty() ? absl::StrCat("key-", ++keys_) : key);
  *request.mutable_spec() = spec;
  const auto response = engine_->SubmitJob(request, now());
  if (!response.ok()) {
    EXPECT_TRUE(dead()) << response.status();
    return 0;
  }
  acknowledged_.insert(response->job());
  Pump();
  return response->job();
}

v1::JobStatus FakeCluster::Job(uint64_t job) {
  const auto status = engine_->GetJob(ToString(JobId{job}), now());
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? *status : v1::JobStatus();
}

std::string FakeCluster::NodeOf(uint64_t job, uint32_t rank) {
  return NodeOfRank(Job(job).placement(), rank);
}

absl::StatusOr<v1::JobStatus> FakeCluster::Cancel(uint64_t job) {
  v1::CancelJobRequest request;
  request.set_idempotency_key(absl::StrCat("key-", ++keys_));
  request.set_job(ToString(JobId{job}));
  auto status = engine_->CancelJob(request, now());
  Pump();
  return status;
}

void FakeCluster::Finish(uint64_t job, uint64_t step, bool snapshot, bool persist) {
  for (auto& [name, node] : nodes_) {
    const auto on_node = node.jobs.find(job);
    if (on_node == node.jobs.end() || !node.up) continue;
    v1::ReportEventsRequest request = node.Request();
    for (auto& [rank, r] : on_node->second.ranks) {
      if (r.phase != v1::RANK_PHASE_RUNNING) continue;
      const bool first = r.step == 0;
      r.step = step;
      r.worker_phase = rank::kPhaseForward;
      if (first) r.first_step_ns = clock_.MonoNs();
      if (first)
        *request.add_events() =
            node.Event(v1::RankEvent::KIND_FIRST_STEP, job, rank, clock_.MonoNs());
      if (!snapshot) continue;
      v1::SnapshotId id;
      id.set_attempt(r.attempt);
      id.set_step(step);
      id.set_persist(persist);
      auto& arena = on_node->second.arenas[rank];
      arena.push_back(id);
      if (arena.size() > 2) arena.erase(arena.begin());
      *request.add_events() = node.Event(v1::RankEvent::KIND_SEALED, job, rank, clock_.MonoNs());
    }
    if (request.events_size() > 0) Report(node, request);
  }
  Pump();
}

void FakeCluster::PrepareRank(uint64_t job, const Point& point, uint32_t rank,
                              const std::string& manifest, const std::string& error) {
  for (auto& [name, node] : nodes_) {
    const auto on_node = node.jobs.find(job);
    if (on_node == node.jobs.end() || !on_node->second.ranks.count(rank) || !node.up) continue;
    v1::PreparedSave save;
    save.set_job(job);
    save.set_attempt(point.attempt);
    save.set_step(point.step);
    save.set_rank(rank);
    save.set_manifest(manifest);
    save.set_error(error);
    if (!error.empty()) save.set_error_class(v1::STORAGE);
    on_node->second.prepared[{point, rank}] = save;
    v1::ReportEventsRequest request = node.Request();
    *request.add_prepared() = save;
    Report(node, request);
  }
}

void FakeCluster::Prepare(uint64_t job, uint64_t step) {
  const v1::JobStatus status = Job(job);
  const uint32_t world = WorldSize(status.placement());
  for (uint32_t rank = 0; rank < world; ++rank) {
    const Point point{status.attempt(), step};
    PrepareRank(job, point, rank, FakeManifest(job, point, rank, world));
  }
  Pump();
}

void FakeCluster::Exit(uint64_t job, uint32_t rank, int32_t code, const std::string& stderr_tail) {
  for (auto& [name, node] : nodes_) {
    const auto on_node = node.jobs.find(job);
    if (on_node == node.jobs.end() || !on_node->second.ranks.count(rank)) continue;
    FakeRank& r = on_node->second.ranks.at(rank);
    if (!r.alive()) continue;
    r.phase = v1::RANK_PHASE_EXITED;
    r.exit_code = code;
    r.ended_ns = clock_.MonoNs();
    r.stderr_tail = stderr_tail;
    if (code == 0 && r.worker_phase == 0)
      r.worker_phase = node.hello ? uint32_t{rank::kPhaseDone} : 0u;
    v1::ReportEventsRequest request = node.Request();
    *request.add_events() = node.Event(v1::RankEvent::KIND_EXITED, job, rank, clock_.MonoNs());
    Report(node, request);
  }
}

void FakeCluster::ExitAll(uint64_t job, int32_t code) {
  const uint32_t world = WorldSize(Job(job).placement());
  for (auto& [name, node] : nodes_) {
    const auto on_node = node.jobs.find(job);
    if (on_node == node.jobs.end()) continue;
    for (auto& [rank, r] : on_node->second.ranks) r.worker_phase = rank::kPhaseDone;
  }
  for (uint32_t rank = 0; rank < world; ++rank) Exit(job, rank, code);
  Pump();
}

void FakeCluster::Stop(uint64_t job, uint32_t rank) {
  for (auto& [name, node] : nodes_) {
    const auto on_node = node.jobs.find(job);
    if (on_node == node.jobs.end() || !on_node->second.ranks.count(rank)) continue;
    FakeRank& r = on_node->second.ranks.at(rank);
    if (!r.alive()) continue;
    r.phase = v1::RANK_PHASE_STOPPED;
    r.ended_ns = clock_.MonoNs();
    v1::ReportEventsRequest request = node.Request();
    *request.add_events() = node.Event(v1::RankEvent::KIND_STOPPED, job, rank, clock_.MonoNs());
    Report(node, request);
  }
  Pump();
}

void FakeCluster::LoseNode(const std::string& name, bool with_ranks) {
  FakeNode& lost = node(name);
  lost.up = false;
  if (with_ranks) lost.KillAllRanks(clock_.MonoNs());
}

void FakeCluster::ReturnNode(const std::string& name, bool new_boot) {
  FakeNode& back = node(name);
  back.up = true;
  ++back.epoch;
  if (new_boot) {
    back.boot_id += "x";
    back.Forget();
  }
  Register(back);
  Pump();
}

std::vector<std::string> FakeCluster::EventKinds(uint64_t job) {
  std::vector<std::string> kinds;
  const auto events = engine_->Events(0, 100'000, job);
  EXPECT_TRUE(events.ok());
  for (const auto& event : *events) kinds.push_back(event.kind());
  return kinds;
}

std::string FakeCluster::Trace() {
  std::string text = "\n";
  const auto events = engine_->Events(0, 100'000, 0);
  if (!events.ok()) return std::string(events.status().message());
  for (const auto& event : *events) {
    absl::StrAppend(&text, event.wall_ns() / kNsPerMs % 10'000'000, " ", event.kind(), " j-",
                    event.job(), " attempt ", event.attempt(), " ", event.node(), " ", event.text(),
                    "\n");
  }
  return text;
}

v1::Incident FakeCluster::LastIncident(uint64_t job) {
  const v1::JobStatus status = Job(job);
  return status.incidents_size() == 0 ? v1::Incident()
                                      : status.incidents(status.incidents_size() - 1);
}

// --- invariants
// ----------------------------------------------------------------------------------------------------------------

void FakeCluster::CheckRuns(uint64_t job,
                            const std::vector<std::pair<std::string, v1::DesiredJob>>& runs) {
  const records::JobRecord& record = engine_->state().jobs.at(job);
  for (const auto& [node, run] : runs) {
    // OneAttemptRuns: no two nodes are asked to run different attempts.
    ASSERT_EQ(run.attempt(), runs[0].second.attempt())
        << "two attempts of j-" << job << " are to run at once";
    // PersistedBeforePublished: what is to run was stored as run.
    ASSERT_EQ(run.attempt(), record.last_run_attempt());
    // AttemptNeverReused: one number means one placement and one start, for ever.
    const std::string as =
        run.placement().SerializeAsString() + run.start_point().SerializeAsString();
    const auto [it, fresh] = run_as_.emplace(std::make_pair(job, run.attempt()), as);
    ASSERT_EQ(it->second, as) << "attempt " << run.attempt() << " of j-" << job
                              << " means two things";
    // WholeGang.
    ASSERT_EQ(static_cast<uint32_t>(run.placement().nodes_size()),
              std::max(1u, run.spec().nodes()));
    for (const auto& placed : run.placement().nodes()) {
      ASSERT_EQ(static_cast<uint32_t>(placed.ranks_size()),
                std::max(1u, run.spec().gpus_per_node()));
    }
    if (!fresh) continue;
    // OldAttemptGone: when an attempt is first published, no reachable node runs an older one, and
    // with a witness fence none at all.
    const bool witness = proto::EffectiveFence(run.spec()) == v1::FENCE_MODE_WITNESS;
    for (const auto& [name, other] : nodes_) {
      const auto on_node = other.jobs.find(job);
      const auto known = engine_->state().nodes.find(name);
      const bool confirmed =
          known != engine_->state().nodes.end() && known->second.confirmed_dead();
      if (on_node == other.jobs.end() || confirmed ||
          (!witness && engine_->state().nodes.at(name).lost()))
        continue;
      for (const auto& [rank, r] : on_node->second.ranks) {
        ASSERT_FALSE(r.alive() && r.attempt < run.attempt())
            << "rank " << rank << " of attempt " << r.attempt << " lives on " << name;
      }
    }
  }
}

void FakeCluster::CheckDevices() {
  std::map<std::string, uint64_t> holder;
  for (const auto& [id, job] : engine_->state().jobs) {
    for (const auto& hold : job.holds()) {
      for (const auto& device : hold.device_ids()) {
        const auto [it, fresh] = holder.emplace(device, id);
        ASSERT_EQ(it->second, id) << device << " is held by two jobs";
      }
    }
  }
}

void FakeCluster::CheckInvariants() {
  std::map<uint64_t, std::vector<std::pair<std::string, v1::DesiredJob>>> runs;
  for (const auto& [name, node] : engine_->state().nodes) {
    const v1::DesiredState desired = engine_->Desired(name);
    for (const auto& job : desired.jobs()) {
      if (job.phase() == v1::DESIRED_PHASE_RUN) runs[job.job()].push_back({name, job});
    }
  }
  for (const auto& [job, of_job] : runs) CheckRuns(job, of_job);
  CheckDevices();
  for (const auto& [id, job] : engine_->state().jobs) {
    const v1::JobStatus& status = job.status();
    ASSERT_GE(status.attempt(), newest_attempt_[id]) << "AttemptNeverFalls: j-" << id;
    newest_attempt_[id] = status.attempt();
    ASSERT_GE(status.attempt(), job.last_run_attempt());
    if (ended_.count(id)) {
      ASSERT_EQ(ended_[id], status.state()) << "EndsAreEnds: j-" << id;
    }
    if (IsEnded(status.state())) ended_[id] = status.state();
    ASSERT_LE(job.book().used(),
              status.spec().has_restarts_max() ? status.spec().restarts_max() : 100u)
        << "WithinBudget: j-" << id;
    if (status.state() == v1::JOB_STATE_DONE && job.last_step() > 0) {
      bool committed = false;
      for (const auto& [at, record] : engine_->state().checkpoints.at(id))
        committed |= at.first == job.last_step() && !record.aborted();
      ASSERT_TRUE(committed) << "DoneIsCommitted: j-" << id;
    }
  }
  std::set<std::string> committed;
  for (const auto& [id, of_job] : engine_->state().checkpoints) {
    for (const auto& [at, record] : of_job) {
      if (!record.aborted()) committed.insert(absl::StrCat(id, "@", at.first, ".", at.second));
    }
  }
  ASSERT_TRUE(
      std::includes(committed.begin(), committed.end(), committed_.begin(), committed_.end()))
      << "CommittedStays";
  committed_ = committed;
  for (const uint64_t id : acknowledged_)
    ASSERT_TRUE(engine_->state().jobs.count(id)) << "AcknowledgedSurvives: j-" << id;
}

}  // namespace holdfast::sched
