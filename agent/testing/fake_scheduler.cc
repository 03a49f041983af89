// SPDX-License-Identifier: Apache-2.0
#include "agent/testing/fake_scheduler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt/format/manifest.h"
#include "proto/channel.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kLookNs = 100 * kNsPerMs;

}  // namespace

class FakeScheduler::Service final : public v1::AgentLink::Service {
 public:
  explicit Service(FakeScheduler* owner) : owner_(owner) {}

  grpc::Status RegisterNode(grpc::ServerContext*, const v1::RegisterNodeRequest* request,
                            v1::RegisterNodeResponse* response) override {
    MutexLock lock(owner_->mutex_);
    ++owner_->told_.registrations[request->node()];
    owner_->told_.nodes[request->node()] = *request;
    owner_->told_.levels[request->node()] = request->report();
    owner_->RelayMasterPorts(request->report());
    for (const v1::PreparedSave& save : request->report().prepared()) owner_->Absorb(save);
    response->set_state_uuid("11111111-2222-3333-4444-555555555555");
    response->set_scheduler_epoch(owner_->epoch_);
    owner_->changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status Beat(grpc::ServerContext*, const v1::BeatRequest* request,
                    v1::BeatResponse* response) override {
    MutexLock lock(owner_->mutex_);
    owner_->told_.levels[request->node()] = request->report();
    owner_->RelayMasterPorts(request->report());
    owner_->told_.beats_ns[request->node()].push_back(SystemClock().MonoNs());
    for (const v1::PreparedSave& save : request->report().prepared()) owner_->Absorb(save);
    response->set_scheduler_epoch(owner_->epoch_);
    for (const std::string& address : owner_->witnesses_) response->add_witnesses(address);
    owner_->changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse*) override {
    MutexLock lock(owner_->mutex_);
    if (!owner_->seen_.insert({request->node(), request->agent_epoch(), request->sequence()})
             .second)
      return grpc::Status::OK;
    for (const v1::RankEvent& event : request->events()) {
      owner_->told_.events.emplace_back(request->node(), event);
      if (event.kind() == v1::RankEvent::KIND_STOP_COMPLETE)
        owner_->told_.stop_levels[request->node()] = request->report();
    }
    owner_->RelayMasterPorts(request->report());
    for (const v1::PreparedSave& save : request->prepared()) owner_->Absorb(save);
    owner_->changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status WatchDesired(grpc::ServerContext* context, const v1::WatchDesiredRequest* request,
                            grpc::ServerWriter<v1::DesiredState>* writer) override {
    uint64_t sent = 0;
    while (!context->IsCancelled()) {
      v1::DesiredState state;
      {
        MutexLock lock(owner_->mutex_);
        if (owner_->off_) break;
        if (owner_->version_ == sent) owner_->changed_.WaitForNs(owner_->mutex_, kLookNs);
        if (owner_->version_ == sent) continue;
        state = owner_->StateOf(request->node());
        sent = state.version();
      }
      if (!writer->Write(state)) break;
    }
    return grpc::Status::OK;
  }

 private:
  FakeScheduler* const owner_;
};

FakeScheduler::FakeScheduler(std::string socket) : socket_(std::move(socket)) {}
FakeScheduler::~FakeScheduler() { Off(); }

void FakeScheduler::On() {
  {
    MutexLock lock(mutex_);
    ++epoch_;
    off_ = false;
  }
  ::unlink(socket_.c_str());
  service_ = std::make_unique<Service>(this);
  grpc::ServerBuilder builder;
  proto::ConfigureServer(&builder);
  builder.AddListeningPort(endpoint(), grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  ASSERT_NE(server_, nullptr) << endpoint();
}

void FakeScheduler::Off() {
  if (server_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    off_ = true;
    changed_.NotifyAll();
  }
  server_->Shutdown(gpr_time_0(GPR_CLOCK_MONOTONIC));
  server_.reset();
  service_.reset();
}

v1::DesiredState FakeScheduler::StateOf(const std::string& node) {
  v1::DesiredState state;
  state.set_version(version_);
  state.set_scheduler_epoch(epoch_);
  for (const auto& [id, job] : wanted_[node]) {
    v1::DesiredJob* out = state.add_jobs();
    *out = job;
    for (const auto& [unused, order] : orders_[id]) *out->add_commits() = order;
  }
  return state;
}

void FakeScheduler::Absorb(const v1::PreparedSave& save) {
  const std::tuple<uint64_t, uint64_t, uint32_t> key{save.attempt(), save.step(), save.rank()};
  if (save.manifest().empty() && save.error().empty()) return;
  told_.prepared[key] = save;
  OrderCommits();
}

void FakeScheduler::OrderCommits() {
  for (const auto& [job, world_size] : commit_world_) {
    std::map<std::pair<uint64_t, uint64_t>, std::vector<ckpt::RankManifest>> sets;
    for (const auto& [key, save] : told_.prepared) {
      if (save.job() != job || !save.error().empty()) continue;
      absl::StatusOr<ckpt::RankManifest> manifest = ckpt::DecodeRankManifest(save.manifest());
      EXPECT_TRUE(manifest.ok()) << manifest.status();
      if (manifest.ok()) sets[{save.attempt(), save.step()}].push_back(*std::move(manifest));
    }
    for (const auto& [id, manifests] : sets) {
      if (manifests.size() != world_size || orders_[job].count(id) != 0) continue;
      const absl::StatusOr<ckpt::CommitRecord> record =
          ckpt::JoinManifests(manifests, SystemClock().WallNs());
      EXPECT_TRUE(record.ok()) << record.status();
      if (!record.ok()) continue;
      v1::CommitOrder order;
      order.set_job(job);
      order.set_attempt(id.first);
      order.set_step(id.second);
      order.set_record(ckpt::EncodeCommitRecord(*record));
      orders_[job][id] = order;
      ++version_;
      changed_.NotifyAll();
    }
  }
}

void FakeScheduler::SetWitnesses(const std::vector<std::string>& addresses) {
  MutexLock lock(mutex_);
  witnesses_ = addresses;
}

// As the real one does: the other nodes of a job learn where its first node serves the ranks'
// store.
void FakeScheduler::RelayMasterPorts(const v1::NodeReport& report) {
  for (const v1::JobOnNode& served : report.jobs()) {
    if (served.master_port() == 0) continue;
    for (auto& [node, jobs] : wanted_) {
      const auto job = jobs.find(served.job());
      if (job == jobs.end() || job->second.attempt() != served.attempt() ||
          job->second.master_port() == served.master_port())
        continue;
      job->second.set_master_port(served.master_port());
      ++version_;
    }
  }
}

void FakeScheduler::Want(const std::string& node, const v1::DesiredJob& job) {
  MutexLock lock(mutex_);
  wanted_[node][job.job()] = job;
  ++version_;
  changed_.NotifyAll();
}

void FakeScheduler::WantNothing(const std::string& node, uint64_t job) {
  MutexLock lock(mutex_);
  wanted_[node].erase(job);
  ++version_;
  changed_.NotifyAll();
}

void FakeScheduler::CommitWhole(uint64_t job, uint32_t world_size) {
  MutexLock lock(mutex_);
  commit_world_[job] = world_size;
  OrderCommits();
}

bool FakeScheduler::WaitFor(const std::string& what,
                            const std::function<bool(const Told&)>& condition) {
  const SystemClock clock;
  const int64_t deadline_ns = clock.MonoNs() + kTestDeadlineMs * kNsPerMs;
  MutexLock lock(mutex_);
  while (!condition(told_)) {
    if (clock.MonoNs() >= deadline_ns) {
      std::string events;
      for (const auto& [node, event] : told_.events)
        events += node + ": " + event.ShortDebugString() + "\n";
      for (const auto& [node, level] : told_.levels)
        events += "level " + node + ": " + level.ShortDebugString() + "\n";
      ADD_FAILURE() << "did not happen: " << what << "\n" << events.substr(0, 8000);
      return false;
    }
    changed_.WaitForNs(mutex_, kLookNs);
  }
  return true;
}

FakeScheduler::Told FakeScheduler::told() {
  MutexLock lock(mutex_);
  return told_;
}

}  // namespace holdfast::agent
