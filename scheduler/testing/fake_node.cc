// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/rank/recorder.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/pack.h"
#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {

v1::RankReport FakeNode::RankOf(uint64_t job, uint32_t rank, int64_t now_ns) const {
  const FakeJob& on_node = jobs.at(job);
  const FakeRank& r = on_node.ranks.at(rank);
  v1::RankReport report;
  report.set_job(job);
  report.set_attempt(r.attempt);
  report.set_rank(rank);
  report.set_phase(r.phase);
  report.set_exit_code(r.exit_code);
  report.set_oom_killed(r.oom);
  report.set_hello(hello);
  if (hello) {
    report.set_step(r.step);
    report.set_worker_phase(r.worker_phase);
    if (r.step > 0) {
      report.set_has_loss(true);
      report.set_loss(1.0 / static_cast<double>(r.step));
      report.set_first_step(r.step);
      report.set_first_step_age_ms((now_ns - r.first_step_ns) / kNsPerMs);
    }
  }
  if (r.quiet.has_value()) *report.mutable_quiet() = *r.quiet;
  if (!r.alive()) report.set_exit_age_ms((now_ns - r.ended_ns) / kNsPerMs);
  const auto arena = on_node.arenas.find(rank);
  if (arena != on_node.arenas.end()) {
    for (const auto& id : arena->second) *report.add_sealed() = id;
  }
  return report;
}

v1::NodeReport FakeNode::Report(int64_t now_ns) const {
  v1::NodeReport report;
  for (const auto& [id, job] : jobs) {
    v1::JobOnNode* on_node = report.add_jobs();
    on_node->set_job(id);
    on_node->set_attempt(job.started_attempt);
    on_node->set_keeper_alive(true);
    bool clean = true;
    for (const auto& [rank, r] : job.ranks) {
      *on_node->add_ranks() = RankOf(id, rank, now_ns);
      clean &= !r.alive();
    }
    on_node->set_clean(clean);
    on_node->set_dirty_reason(job.dirty_reason);
    on_node->set_commits_written(job.commits_written);
    on_node->set_master_port(job.master_port);
    for (const auto& [key, save] : job.prepared) *report.add_prepared() = save;
  }
  for (uint32_t i = 0; i < gpus_; ++i) {
    v1::Device* device = report.add_devices();
    device->set_id(absl::StrCat(name_, "-gpu", i));
    device->set_kind("simulated");
    device->set_healthy(true);
    device->set_index(i);
  }
  return report;
}

v1::RegisterNodeRequest FakeNode::Registration(int64_t now_ns) const {
  v1::RegisterNodeRequest request;
  request.set_node(name_);
  request.set_boot_id(boot_id);
  request.set_address(absl::StrCat("unix:/nodes/", name_, "/agent.sock"));
  request.set_agent_epoch(epoch);
  request.set_predecessor_stopped(predecessor_stopped);
  *request.mutable_report() = Report(now_ns);
  *request.mutable_devices() = request.report().devices();
  return request;
}

v1::BeatRequest FakeNode::Beat(int64_t now_ns) {
  v1::BeatRequest request;
  request.set_node(name_);
  request.set_boot_id(boot_id);
  request.set_agent_epoch(epoch);
  request.set_sequence(++sequence_);
  *request.mutable_report() = Report(now_ns);
  return request;
}

v1::ReportEventsRequest FakeNode::Request() const {
  v1::ReportEventsRequest request;
  request.set_node(name_);
  request.set_boot_id(boot_id);
  request.set_agent_epoch(epoch);
  return request;
}

v1::RankEvent FakeNode::Event(v1::RankEvent::Kind kind, uint64_t job, uint32_t rank,
                              int64_t now_ns) const {
  v1::RankEvent event;
  event.set_kind(kind);
  *event.mutable_rank() = RankOf(job, rank, now_ns);
  const FakeRank& r = jobs.at(job).ranks.at(rank);
  if (r.ended_ns > 0) event.set_age_us((now_ns - r.ended_ns) / kNsPerUs);
  event.set_stderr_tail(r.stderr_tail);
  return event;
}

void FakeNode::KillAllRanks(int64_t now_ns) {
  for (auto& [id, job] : jobs) {
    for (auto& [rank, r] : job.ranks) {
      if (!r.alive()) continue;
      r.phase = v1::RANK_PHASE_EXITED;
      r.exit_code = -9;
      r.ended_ns = now_ns;
    }
  }
}

namespace {

bool StopRanks(FakeJob* job, int64_t now_ns) {
  bool any = false;
  for (auto& [rank, r] : job->ranks) {
    if (!r.alive()) continue;
    r.phase = v1::RANK_PHASE_EXITED;
    r.exit_code = -9;
    r.ended_ns = now_ns;
    any = true;
  }
  return any;
}

}  // namespace

v1::ReportEventsRequest FakeNode::Apply(const v1::DesiredState& desired, int64_t now_ns) {
  v1::ReportEventsRequest request = Request();
  undone = false;
  for (const auto& wanted : desired.jobs()) {
    orders_seen[wanted.job()].push_back({wanted.phase(), wanted.stop()});
    FakeJob& job = jobs[wanted.job()];
    for (const auto& order : wanted.commits()) {
      const Point point{order.attempt(), order.step()};
      ++(order.abort() ? aborts_seen : commits_seen)[point];
      if (!order.abort()) job.commits_written = std::max(job.commits_written, order.step());
      std::erase_if(job.prepared, [&](const auto& entry) { return entry.first.first == point; });
    }
    if (wanted.attempt() < job.fence_attempt && wanted.phase() != v1::DESIRED_PHASE_FORGET)
      continue;
    job.fence_attempt = wanted.attempt();
    if (wanted.phase() == v1::DESIRED_PHASE_RUN) {
      if (job.started_attempt >= wanted.attempt()) continue;
      if (!start_ranks) {
        undone = true;
        continue;
      }
      StopRanks(&job, now_ns);
      job.ranks.clear();
      job.started_attempt = wanted.attempt();
      for (const auto& node : wanted.placement().nodes()) {
        if (node.node() != name_) continue;
        for (const auto& r : node.ranks()) {
          job.ranks[r.rank()] = FakeRank{.attempt = wanted.attempt()};
          *request.add_events() =
              Event(v1::RankEvent::KIND_STARTED, wanted.job(), r.rank(), now_ns);
        }
      }
      continue;
    }
    if (!obey_stops) {
      undone = true;
      continue;
    }
    StopRanks(&job, now_ns);
    if (wanted.phase() == v1::DESIRED_PHASE_FORGET) {
      jobs.erase(wanted.job());
    } else if (job.stop_reported < wanted.attempt()) {
      job.stop_reported = wanted.attempt();
      v1::RankEvent* event = request.add_events();
      event->set_kind(v1::RankEvent::KIND_STOP_COMPLETE);
      event->mutable_rank()->set_job(wanted.job());
      event->mutable_rank()->set_attempt(wanted.attempt());
      *request.mutable_report() = Report(now_ns);
    }
  }
  return request;
}

std::string FakeManifest(uint64_t job, const Point& point, uint32_t rank, uint32_t world,
                         uint64_t shared_digest) {
  ckpt::RankManifest manifest;
  manifest.id = {JobId{job}, point.attempt, point.step};
  manifest.rank = rank;
  manifest.world_size = world;
  manifest.samples = point.step * 8;
  manifest.pack = ckpt::PackFileName(rank);
  manifest.pack_bytes = 3 * ckpt::kPackAlign;
  manifest.pack_digest = {rank + 1, 1};
  ckpt::TensorRecord own;
  own.name = absl::StrCat("w", rank);
  own.dtype = rank::kF32;
  own.global_shape = {4};
  own.box = {{0}, {4}};
  own.bytes = 16;
  own.digest = {rank + 10, point.step};
  own.pack_offset = ckpt::kPackAlign;
  ckpt::TensorRecord shared = own;
  shared.name = "shared";
  shared.replica = rank;
  shared.digest = {shared_digest, point.step};
  shared.pack_offset = rank == 0 ? 2 * ckpt::kPackAlign : 0;
  manifest.tensors = {shared, own};
  return ckpt::EncodeRankManifest(manifest);
}

v1::JobSpec CommandSpec(uint32_t nodes, uint32_t gpus) {
  v1::JobSpec spec;
  spec.set_name("cmd");
  spec.add_command("true");
  spec.set_nodes(nodes);
  spec.set_gpus_per_node(gpus);
  spec.set_working_directory("/");
  return spec;
}

v1::JobSpec TrainerSpec(uint32_t nodes, uint32_t gpus) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.set_trainer_config("/train.yaml");
  spec.set_nodes(nodes);
  spec.set_gpus_per_node(gpus);
  spec.set_working_directory("/");
  spec.set_snapshot_every_steps(1);
  spec.set_persist_every_steps(5);
  return spec;
}

}  // namespace holdfast::sched
