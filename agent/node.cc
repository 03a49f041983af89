// SPDX-License-Identifier: Apache-2.0
#include "agent/node.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "agent/version.h"
#include "base/limits.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kPollNs = 20 * kNsPerMs;       // recorders, pending stops
constexpr int64_t kSlowPollNs = 200 * kNsPerMs;  // cgroups
constexpr int64_t kDeviceLookNs = 200 * kNsPerMs;
constexpr int64_t kUnknownLookNs = 60 * kNsPerSec;
constexpr int64_t kUnknownLookAgainNs = 2 * kNsPerSec;  // while there is something unknown
constexpr int64_t kPingDeadlineMs = 1000;
constexpr size_t kBeatManifestBytesMax = 6 << 20;  // manifests of prepared saves in one beat
constexpr size_t kUnknownMax = 256;

}  // namespace

Node::Node(EventLoop* loop, const NodeOptions& options, std::unique_ptr<DeviceProvider> devices,
           Saver* saver, WorkQueue* files, PeerClient* peers, ActivityWatcher* activity,
           Uplink* uplink)
    : loop_(loop),
      options_(options),
      devices_(std::move(devices)),
      saver_(saver),
      files_(files),
      peers_(peers),
      activity_(activity),
      uplink_(uplink) {}

Node::~Node() {
  if (poll_timer_ != 0) loop_->Cancel(poll_timer_);
  if (beat_timer_ != 0) loop_->Cancel(beat_timer_);
}

absl::Status Node::Start() {
  HF_RETURN_IF_ERROR(LoadStateUuid());
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      PosixFileSystem()->List(options_.KeepersDir()));
  for (const std::string& name : names) {
    const absl::StatusOr<JobId> id = ParseJobId(name);
    if (!id.ok()) {
      spdlog::warn("{}/{}: not a job's directory; left alone", options_.KeepersDir(), name);
      continue;
    }
    JobFor(id->value)->Adopt();
  }
  LookForUnknown();
  Poll();
  Beat();
  return absl::OkStatus();
}

absl::Status Node::LoadStateUuid() {
  const std::string path = JoinPath(options_.state_dir, "state_uuid");
  HF_ASSIGN_OR_RETURN(const bool there, PosixFileSystem()->Exists(path));
  if (!there) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(state_uuid_, PosixFileSystem()->ReadFile(path));
  return absl::OkStatus();
}

absl::Status Node::Registered(const v1::RegisterNodeResponse& response) {
  if (response.state_uuid() != state_uuid_) {
    if (!state_uuid_.empty() && !jobs_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("this node runs jobs of state ", state_uuid_, ", but the scheduler at ",
                       options_.scheduler, " has state ", response.state_uuid(),
                       "; point the agent at its scheduler, or end those jobs and remove ",
                       options_.state_dir, "/state_uuid"));
    }
    HF_RETURN_IF_ERROR(PosixFileSystem()->WriteFileDurably(
        JoinPath(options_.state_dir, "state_uuid"), response.state_uuid()));
    state_uuid_ = response.state_uuid();
  }
  if (response.scheduler_epoch() != scheduler_epoch_) {
    scheduler_epoch_ = response.scheduler_epoch();
    desired_version_ = 0;
  }
  return absl::OkStatus();
}

NodeJob* Node::FindJob(uint64_t job) {
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : it->second.get();
}

NodeJob* Node::JobFor(uint64_t job) {
  std::unique_ptr<NodeJob>& entry = jobs_[job];
  if (entry != nullptr) return entry.get();
  JobContext context;
  context.loop = loop_;
  context.options = &options_;
  context.saver = saver_;
  context.files = files_;
  context.peers = peers_;
  context.activity = activity_;
  context.state_uuid = &state_uuid_;
  context.simulated_devices = devices_->simulated();
  context.emit = [this](v1::RankEvent event, int64_t at_ns, bool with_level) {
    std::optional<v1::NodeReport> level;
    if (with_level) level = Report();
    uplink_->SendEvent(std::move(event), at_ns, std::move(level));
  };
  context.emit_prepared = [this](const v1::PreparedSave& save) {
    uplink_->SendPrepared(save, loop_->Now());
  };
  context.fence_deadline = [this](int64_t fence_ms) { return fence_.DeadlineNs(fence_ms); };
  context.forgotten = [this](uint64_t id) { loop_->At(0, [this, id] { Forgotten(id); }); };
  entry = std::make_unique<NodeJob>(JobId{job}, context);
  return entry.get();
}

void Node::Forgotten(uint64_t job) { jobs_.erase(job); }

void Node::Desired(const v1::DesiredState& state) {
  if (state.scheduler_epoch() != 0 && state.scheduler_epoch() < scheduler_epoch_)
    return;  // of one that was replaced
  if (state.scheduler_epoch() == scheduler_epoch_ && state.version() < desired_version_) return;
  desired_version_ = state.version();
  for (const v1::DesiredJob& desired : state.jobs()) {
    if (FindJob(desired.job()) == nullptr) {
      if (desired.phase() == v1::DESIRED_PHASE_FORGET) continue;
      if (jobs_.size() >= static_cast<size_t>(kJobsMax)) continue;
    }
    JobFor(desired.job())->SetDesired(desired);
  }
}

void Node::BeatAnswered(int64_t sent_ns, const v1::BeatResponse& response) {
  fence_.SetWitnesses({response.witnesses().begin(), response.witnesses().end()});
  fence_.BeatAnswered(sent_ns);
  SetFences();
}

v1::NodeReport Node::Report() const {
  v1::NodeReport report;
  size_t manifest_bytes = kBeatManifestBytesMax;
  const int64_t now = loop_->Now();
  for (const auto& [unused, job] : jobs_) {
    job->AddReport(now, &report);
    job->AddPrepared(&manifest_bytes, &report);
  }
  for (const v1::Device& device : devices_->devices()) *report.add_devices() = device;
  for (const std::string& text : unknown_) report.add_unknown_processes(text);
  return report;
}

v1::RegisterNodeRequest Node::Registration() const {
  v1::RegisterNodeRequest request;
  request.set_node(options_.node);
  request.set_boot_id(options_.boot_id);
  request.set_address(options_.address);
  request.set_agent_version(kAgentVersion);
  request.set_agent_epoch(options_.epoch);
  request.set_predecessor_stopped(options_.predecessor_stopped);
  for (const v1::Device& device : devices_->devices()) *request.add_devices() = device;
  *request.mutable_report() = Report();
  return request;
}

void Node::Beat() {
  ++beat_;
  for (auto it = jobs_.begin(); it != jobs_.end();) (it++)->second->Refresh();
  std::vector<WatchedRank> watched;
  for (const auto& [unused, job] : jobs_) job->AddWatched(&watched);
  activity_->SetRanks(std::move(watched));
  v1::BeatRequest beat;
  beat.set_node(options_.node);
  beat.set_boot_id(options_.boot_id);
  beat.set_agent_epoch(options_.epoch);
  beat.set_sequence(beat_);
  *beat.mutable_report() = Report();
  uplink_->SendBeat(std::move(beat));
  PingWitnesses();
  SetFences();
  if (loop_->Now() >= next_unknown_look_ns_) LookForUnknown();
  beat_timer_ = loop_->At(loop_->Now() + kBeatIntervalMs * kNsPerMs, [this] { Beat(); });
}

void Node::Poll() {
  const int64_t now = loop_->Now();
  const bool slow = now >= next_slow_poll_ns_;
  if (slow) next_slow_poll_ns_ = now + kSlowPollNs;
  for (auto& [unused, job] : jobs_) {
    if (job->AnyAlive()) job->Poll(slow);
  }
  if (now >= next_device_look_ns_) RefreshDevices();
  poll_timer_ = loop_->At(now + kPollNs, [this] { Poll(); });
}

void Node::RefreshDevices() {
  next_device_look_ns_ = loop_->Now() + kDeviceLookNs;
  const absl::StatusOr<bool> changed = devices_->Refresh();
  const std::string error = changed.ok() ? "" : changed.status().ToString();
  if (error != device_error_) {
    device_error_ = error;
    if (error.empty()) {
      spdlog::info("devices: readable again");
    } else {
      spdlog::error("devices: {}; the last good reading stays in force", error);
    }
  }
  if (!changed.ok() || !*changed || beat_timer_ == 0) return;
  spdlog::info("devices: changed; {} now", devices_->devices().size());
  loop_->Cancel(std::exchange(beat_timer_, 0));
  Beat();
}

void Node::PingWitnesses() {
  v1::PingRequest ping;
  ping.set_from_node(options_.node);
  ping.set_from_beat(beat_);
  for (const std::string& address : fence_.Witnesses()) {
    const int64_t sent_ns = loop_->Now();
    peers_->Ping(address, ping, kPingDeadlineMs,
                 [this, address, sent_ns](const std::optional<std::string>& answered) {
                   if (!answered.has_value()) return;
                   fence_.WitnessAnswered(address, sent_ns);
                   SetFences();
                 });
  }
}

void Node::SetFences() {
  for (auto& [unused, job] : jobs_) {
    if (!job->WantsFence()) continue;
    const std::optional<int64_t> deadline = fence_.DeadlineNs(job->fence_ms());
    if (deadline.has_value()) job->SetFence(*deadline);
  }
}

// What runs under our keepers' directory without a keeper we know. A job that is known gets its
// own told; of one that is not, a job is made, so that the scheduler hears of it and can order its
// end.
void Node::LookForUnknown() {
  std::vector<std::string> unknown;
  for (const FoundProcess& process : FindKeepersAndRanks(options_.KeepersDir() + "/")) {
    const absl::StatusOr<JobId> id = ParseJobId(process.job);
    NodeJob* job = id.ok() ? FindJob(id->value) : nullptr;
    if (job != nullptr && (job->Owns(process.pid) || !job->Believes(process))) continue;
    // Of a job that nobody here knows: not on the word of an environment that any user can set.
    if (job == nullptr && !IsOurs(process)) continue;
    if (unknown.size() < kUnknownMax) {
      unknown.push_back(
          absl::StrCat("process ", process.pid, " (", process.comm, ") of ", process.job));
    }
    if (id.ok()) JobFor(id->value)->FoundStrays(process.attempt);
  }
  next_unknown_look_ns_ = loop_->Now() + (unknown.empty() ? kUnknownLookNs : kUnknownLookAgainNs);
  if (unknown == unknown_) return;
  unknown_ = std::move(unknown);
  for (const std::string& text : unknown_)
    spdlog::error("{}: of no keeper this node knows; left running", text);
}

}  // namespace holdfast::agent
