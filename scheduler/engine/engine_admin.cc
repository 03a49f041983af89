// SPDX-License-Identifier: Apache-2.0
// The engine's side towards users. Every mutating call has an idempotency key that is stored with
// its effect.
#include <google/protobuf/util/message_differencer.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/job_spec.h"
#include "proto/modes.h"
#include "proto/text.h"
#include "scheduler/core/restart_policy.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/failures.h"
#include "scheduler/engine/job_flow.h"
#include "scheduler/engine/recovery.h"
#include "scheduler/engine/views.h"

namespace holdfast::sched {
namespace {

constexpr size_t kLedgerAnswerBytesMax = 12 << 20;  // a message has at most 16 MiB

constexpr uint32_t kPageDefault = 1000;
constexpr size_t kKeyBytesMax = 256;

// The caller's uid cannot be read through this version of gRPC. A scheduler that does not run as
// root can start ranks only as its own user, so that is what a job gets; one that runs as root
// takes the ids that the submitting client filled in, which is safe as far as the socket is: its
// directory belongs to root.
absl::Status SetOwner(const EngineOptions& options, v1::JobSpec* spec) {
  if (options.uid == 0) return absl::OkStatus();
  const bool unset = spec->uid() == 0 && spec->gid() == 0;
  if (!unset && spec->uid() != options.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat("uid: ", spec->uid(), " asked for, but this scheduler runs as uid ",
                     options.uid, " and can start jobs of that user only; submit as that user"));
  }
  spec->set_uid(options.uid);
  if (unset) spec->set_gid(options.gid);
  spec->set_user(options.user);
  return absl::OkStatus();
}

absl::Status CheckFrom(const Txn& txn, const v1::JobSpec& spec) {
  if (spec.from().empty()) return absl::OkStatus();
  const absl::StatusOr<CheckpointId> id = proto::ParseCheckpointName(spec.from());
  if (!id.ok()) return Annotate(id.status(), absl::StrCat("from: \"", spec.from(), "\"").c_str());
  std::string steps;
  for (const auto& record : txn.Checkpoints(id->job.value)) {
    if (record.aborted()) continue;
    if (record.ref().step() == id->step &&
        (id->attempt == 0 || record.ref().attempt() == id->attempt))
      return absl::OkStatus();
    absl::StrAppend(&steps, steps.empty() ? "" : ", ", record.ref().step(), ".",
                    record.ref().attempt());
  }
  return absl::NotFoundError(absl::StrCat("from: no committed checkpoint ", spec.from(), "; ",
                                          ToString(id->job), " has ",
                                          steps.empty() ? "none" : steps));
}

void RememberKey(Cycle& c, const std::string& key, const std::string& method, uint64_t job,
                 const std::string& node = "") {
  records::KeyRecord record;
  record.set_key(key);
  record.set_method(method);
  record.set_job(job);
  record.set_node(node);
  c.txn.AddKey(std::move(record));
}

uint64_t CreateJob(Cycle& c, const v1::JobSpec& spec) {
  records::JobRecord* job = c.txn.AddJob();
  v1::JobStatus* status = job->mutable_status();
  *status->mutable_spec() = spec;
  if (status->spec().name().empty())
    status->mutable_spec()->set_name(ToString(JobId{status->id()}));
  status->set_state(v1::JOB_STATE_QUEUED);
  status->set_submitted_wall_ns(c.now.wall_ns);
  status->set_restarts_left(RestartsMax(spec));
  job->set_store(spec.store().empty() ? c.options.default_store : spec.store());
  c.job_facts(status->id()).queued_since_ns = c.now.mono_ns;
  c.queue_dirty = true;
  AddJobEvent(
      c, *job, "job.submitted",
      absl::StrCat(status->spec().name(), ": ", std::max(1u, spec.nodes()), " node(s) x ",
                   proto::RanksPerNode(spec), " rank(s), ", spec.gpus_per_node(), " GPU(s) each"));
  return status->id();
}

absl::Status WrongState(const records::JobRecord& job, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(ToString(JobId{job.status().id()}), " is ",
                                                    StateName(job.status().state()), "; ", what));
}

}  // namespace

template <typename F>
auto Engine::WithCycle(Now now, F f) const {
  auto* self = const_cast<Engine*>(this);  // the transaction below is never committed
  Txn txn(&self->state_, store_, now);
  std::set<std::string> nodes;
  bool queue = false;
  Cycle c{txn, self->facts_, options_, now, nodes, queue};
  return f(c);
}

absl::Status Engine::CheckKey(const std::string& key, const std::string& method) const {
  if (key.empty() || key.size() > kKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("idempotency_key: ", key.size(), " bytes; 1 to ",
                                                   kKeyBytesMax, " are needed"));
  }
  const auto known = state_.keys.find(key);
  if (known != state_.keys.end() && known->second.method() != method) {
    return absl::InvalidArgumentError(absl::StrCat("idempotency_key: ", key, " was used for ",
                                                   known->second.method(), " before"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Engine::ResolveJob(const std::string& job) const {
  if (job.rfind("j-", 0) == 0) {
    const absl::StatusOr<JobId> id = ParseJobId(job);
    if (id.ok() && state_.jobs.count(id->value)) return id->value;
    if (id.ok()) return absl::NotFoundError(absl::StrCat("no job ", job));
  }
  std::vector<uint64_t> live, ended;
  for (const auto& [id, record] : state_.jobs) {
    if (record.status().spec().name() == job)
      (IsEnded(record.status().state()) ? ended : live).push_back(id);
  }
  if (live.size() == 1) return live[0];
  if (live.empty() && ended.size() == 1) return ended[0];
  // --json tells ids as plain numbers.
  uint64_t number = 0;
  if (live.empty() && ended.empty() && absl::SimpleAtoi(job, &number) && state_.jobs.count(number))
    return number;
  if (live.empty() && ended.empty())
    return absl::NotFoundError(absl::StrCat("no job has the id or name \"", job, "\""));
  std::string ids;
  for (const uint64_t id : live.empty() ? ended : live)
    absl::StrAppend(&ids, ids.empty() ? "" : ", ", ToString(JobId{id}));
  return absl::FailedPreconditionError(
      absl::StrCat("several jobs are named \"", job, "\": ", ids, "; name one by its id"));
}

absl::StatusOr<v1::SubmitJobResponse> Engine::SubmitJob(const v1::SubmitJobRequest& request,
                                                        Now now) {
  v1::SubmitJobResponse response;
  v1::JobSpec spec = request.spec();
  HF_RETURN_IF_ERROR(proto::ValidateJobSpec(&spec));
  HF_RETURN_IF_ERROR(SetOwner(options_, &spec));
  if (request.validate_only()) {
    HF_RETURN_IF_ERROR(WithCycle(now, [&](Cycle& c) { return CheckFrom(c.txn, spec); }));
    *response.mutable_status()->mutable_spec() = spec;
    return response;
  }
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "SubmitJob"));
  uint64_t id = 0;
  if (const auto known = state_.keys.find(request.idempotency_key()); known != state_.keys.end()) {
    id = known->second.job();
    if (!state_.jobs.count(id))
      return absl::NotFoundError(
          absl::StrCat(ToString(JobId{id}), " of this key is not kept any more"));
    if (!google::protobuf::util::MessageDifferencer::Equals(state_.jobs.at(id).status().spec(),
                                                            spec)) {
      return absl::FailedPreconditionError(
          absl::StrCat("idempotency_key: \"", request.idempotency_key(), "\" was used for ",
                       ToString(JobId{id}), ", which asks for something else; take another key"));
    }
  } else {
    if (state_.active.size() >= static_cast<size_t>(kJobsMax)) {
      return absl::ResourceExhaustedError(absl::StrCat("more than ", kJobsMax, " live jobs"));
    }
    const std::set<uint64_t> none;
    HF_RETURN_IF_ERROR(Run(now, &none, [&](Cycle& c) {
      if (const absl::Status from = CheckFrom(c.txn, spec); !from.ok()) return from;
      id = CreateJob(c, spec);
      RememberKey(c, request.idempotency_key(), "SubmitJob", id);
      return absl::OkStatus();
    }));
  }
  response.set_job(id);
  *response.mutable_status() = ViewJob(state_.jobs.at(id), facts_);
  return response;
}

absl::StatusOr<v1::JobStatus> Engine::GetJob(const std::string& job, Now) const {
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(job));
  return ViewJob(state_.jobs.at(id), facts_);
}

absl::StatusOr<v1::ListJobsResponse> Engine::ListJobs(const v1::ListJobsRequest& request,
                                                      Now) const {
  uint64_t after = 0;
  const std::string& token = request.page_token();
  if (!token.empty()) {
    const auto parsed = std::from_chars(token.data(), token.data() + token.size(), after);
    if (parsed.ec != std::errc() || parsed.ptr != token.data() + token.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("page_token: \"", token, "\" is not one of ours"));
    }
  }
  const uint32_t page =
      request.page_size() == 0 ? kPageDefault : std::min(request.page_size(), kPageDefault);
  v1::ListJobsResponse response;
  for (auto it = state_.jobs.upper_bound(after); it != state_.jobs.end(); ++it) {
    if (!request.all() && IsEnded(it->second.status().state())) continue;
    if (static_cast<uint32_t>(response.jobs_size()) == page) {
      response.set_next_page_token(std::to_string(response.jobs(response.jobs_size() - 1).id()));
      break;
    }
    *response.add_jobs() = ViewJob(it->second, facts_);
  }
  return response;
}

absl::StatusOr<v1::JobStatus> Engine::CancelJob(const v1::CancelJobRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "CancelJob"));
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(request.job()));
  const records::JobRecord& job = state_.jobs.at(id);
  const v1::JobState state = job.status().state();
  const bool repeated =
      state_.keys.count(request.idempotency_key()) || state == v1::JOB_STATE_CANCELLED ||
      (state == v1::JOB_STATE_STOPPING && job.intent() == records::STOP_INTENT_CANCEL);
  if (!repeated && IsEnded(state)) return WrongState(job, "nothing is left to cancel");
  if (!repeated) {
    const std::set<uint64_t> one = {id};
    HF_RETURN_IF_ERROR(Run(now, &one, [&](Cycle& c) {
      OrderStop(c, id, records::STOP_INTENT_CANCEL, /*graceful=*/false, "cancelled by request");
      RememberKey(c, request.idempotency_key(), "CancelJob", id);
      return absl::OkStatus();
    }));
  }
  return ViewJob(state_.jobs.at(id), facts_);
}

absl::StatusOr<v1::JobStatus> Engine::RestartJob(const v1::RestartJobRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "RestartJob"));
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(request.job()));
  const records::JobRecord& job = state_.jobs.at(id);
  if (state_.keys.count(request.idempotency_key())) return ViewJob(job, facts_);
  const v1::JobState state = job.status().state();
  if (state != v1::JOB_STATE_RUNNING && state != v1::JOB_STATE_STARTING)
    return WrongState(job, "only a running job can be restarted");
  if (request.expected_attempt() != 0 && request.expected_attempt() != job.status().attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected_attempt: ", request.expected_attempt(), ", but attempt ",
                     job.status().attempt(), " runs"));
  }
  const std::set<uint64_t> one = {id};
  HF_RETURN_IF_ERROR(Run(now, &one, [&](Cycle& c) {
    if (request.from_step() > 0) {
      const std::vector<records::AttemptLink> links(job.line().begin(), job.line().end());
      const Line line(id, links);
      StartRequest wanted;
      wanted.job = id;
      wanted.placement = &job.status().placement();
      wanted.arenas = &c.job_facts(id).arenas;
      wanted.line = &line;
      for (const auto& record : c.txn.Checkpoints(id)) {
        if (!record.aborted()) wanted.committed.push_back(record.ref());
      }
      wanted.wanted_step = request.from_step();
      if (const absl::Status reachable = ChooseStartPoint(wanted).status(); !reachable.ok())
        return reachable;
    }
    BeginManualRestart(c, id, request.from_step());
    RememberKey(c, request.idempotency_key(), "RestartJob", id);
    return absl::OkStatus();
  }));
  return ViewJob(state_.jobs.at(id), facts_);
}

absl::StatusOr<v1::SaveJobResponse> Engine::SaveJob(const v1::SaveJobRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "SaveJob"));
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(request.job()));
  if (!state_.keys.count(request.idempotency_key())) {
    const records::JobRecord& job = state_.jobs.at(id);
    if (job.status().state() != v1::JOB_STATE_RUNNING &&
        job.status().state() != v1::JOB_STATE_STARTING) {
      return WrongState(job, "only a running job can be saved");
    }
    // A script may take snapshots that nobody ordered.
    const auto facts = facts_.jobs.find(id);
    const bool seen = job.book().points_visible() ||
                      (facts != facts_.jobs.end() && facts->second.newest_complete_step > 0);
    if (job.status().spec().snapshot_every_steps() == 0 && !seen) {
      return absl::FailedPreconditionError(
          absl::StrCat(ToString(JobId{id}),
                       " has taken no snapshot, and none was ordered (snapshot_every_steps is "
                       "0): there is nothing to save"));
    }
    const std::set<uint64_t> one = {id};
    HF_RETURN_IF_ERROR(Run(now, &one, [&](Cycle& c) {
      records::JobRecord* changed = c.txn.MutableJob(id);
      changed->set_save_requests(changed->save_requests() + 1);
      MarkDirty(c, *changed);
      AddJobEvent(c, *changed, "job.save_requested", "");
      RememberKey(c, request.idempotency_key(), "SaveJob", id);
      return absl::OkStatus();
    }));
  }
  v1::SaveJobResponse response;
  response.set_job(id);
  response.set_attempt(state_.jobs.at(id).status().attempt());
  return response;
}

absl::StatusOr<v1::ListLedgerResponse> Engine::ListLedger(
    const v1::ListLedgerRequest& request) const {
  uint64_t job = 0;
  if (!request.job().empty()) {
    HF_ASSIGN_OR_RETURN(job, ResolveJob(request.job()));
  }
  // The newest that one answer can hold.
  std::vector<const v1::LedgerEntry*> chosen;
  size_t bytes = 0;
  for (auto it = state_.ledger.rbegin(); it != state_.ledger.rend(); ++it) {
    const v1::LedgerEntry& entry = it->second;
    if (job != 0 && entry.job() != job) continue;
    if (entry.begin_wall_ns() < request.since_wall_ns()) continue;
    bytes += entry.ByteSizeLong();
    if (bytes > kLedgerAnswerBytesMax) break;
    chosen.push_back(&entry);
  }
  v1::ListLedgerResponse response;
  for (auto it = chosen.rbegin(); it != chosen.rend(); ++it) *response.add_entries() = **it;
  return response;
}

absl::StatusOr<v1::JobStatus> Engine::SetModes(const v1::SetModesRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "SetModes"));
  HF_RETURN_IF_ERROR(proto::CheckModes(request.modes()));
  if (request.modes().empty())
    return absl::InvalidArgumentError(absl::StrCat("modes: none is given; ", proto::kModesAllowed));
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(request.job()));
  if (!state_.keys.count(request.idempotency_key())) {
    const records::JobRecord& job = state_.jobs.at(id);
    if (IsEnded(job.status().state())) return WrongState(job, "its modes matter no more");
    const std::set<uint64_t> one = {id};
    HF_RETURN_IF_ERROR(Run(now, &one, [&](Cycle& c) {
      records::JobRecord* changed = c.txn.MutableJob(id);
      std::string text;
      for (const auto& [cause, mode] : request.modes()) {
        (*changed->mutable_status()->mutable_spec()->mutable_modes())[cause] = mode;
        absl::StrAppend(&text, text.empty() ? "" : ", ", cause, "=", proto::ModeName(mode));
      }
      AddJobEvent(c, *changed, "job.modes", text);
      RememberKey(c, request.idempotency_key(), "SetModes", id);
      return absl::OkStatus();
    }));
  }
  return GetJob(ToString(JobId{id}), now);
}

absl::StatusOr<v1::ListCheckpointsResponse> Engine::ListCheckpoints(const std::string& job) const {
  HF_ASSIGN_OR_RETURN(const uint64_t id, ResolveJob(job));
  v1::ListCheckpointsResponse response;
  if (const auto of_job = state_.checkpoints.find(id); of_job != state_.checkpoints.end()) {
    for (const auto& [at, record] : of_job->second) {
      v1::CheckpointInfo* info = response.add_checkpoints();
      *info->mutable_ref() = record.ref();
      info->set_state(record.aborted() ? absl::StrCat("aborted: ", record.why()) : "committed");
      info->set_bytes(record.bytes());
      info->set_committed_wall_ns(record.committed_wall_ns());
      info->set_store(record.store());
    }
  }
  const auto facts = facts_.jobs.find(id);
  if (facts == facts_.jobs.end()) return response;
  const records::JobRecord& record = state_.jobs.at(id);
  for (const auto& [point, save] : facts->second.saves.open()) {
    v1::CheckpointInfo* info = response.add_checkpoints();
    info->mutable_ref()->set_job(id);
    info->mutable_ref()->set_attempt(point.attempt);
    info->mutable_ref()->set_step(point.step);
    info->set_state(absl::StrCat("prepared ", save.manifests.size(), "/",
                                 WorldSize(record.status().placement())));
    info->set_store(record.store());
  }
  return response;
}

absl::StatusOr<v1::NodeStatus> Engine::NodeView(const std::string& node, Now now) const {
  const auto record = state_.nodes.find(node);
  if (record == state_.nodes.end())
    return absl::NotFoundError(absl::StrCat("no node \"", node, "\""));
  return WithCycle(now, [&](Cycle& c) { return ViewNode(c, record->second); });
}

v1::ListNodesResponse Engine::ListNodes(Now now) const {
  return WithCycle(now, [&](Cycle& c) {
    v1::ListNodesResponse response;
    for (const auto& [name, node] : state_.nodes) *response.add_nodes() = ViewNode(c, node);
    return response;
  });
}

absl::StatusOr<v1::NodeStatus> Engine::DrainNode(const v1::DrainNodeRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "DrainNode"));
  const std::string name = request.node();
  HF_RETURN_IF_ERROR(NodeView(name, now).status());
  if (!state_.keys.count(request.idempotency_key())) {
    HF_RETURN_IF_ERROR(Run(now, nullptr, [&](Cycle& c) {
      records::NodeRecord* node = c.txn.MutableNode(name);
      node->set_cordoned(true);
      node->set_cordon_reason(request.reason().empty() ? "drained by request" : request.reason());
      AddNodeEvent(c, name, "node.draining", node->cordon_reason());
      for (const uint64_t id : c.txn.ActiveJobs()) {
        const records::JobRecord* job = c.txn.FindJob(id);
        const v1::JobState state = job->status().state();
        const bool runs = state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING;
        if (!runs || PlacementOn(job->status().placement(), name) == nullptr) continue;
        OrderStop(c, id, records::STOP_INTENT_DRAIN, /*graceful=*/true,
                  absl::StrCat("node ", name, " is drained"));
      }
      RememberKey(c, request.idempotency_key(), "DrainNode", 0, name);
      return absl::OkStatus();
    }));
  }
  return NodeView(name, now);
}

absl::StatusOr<v1::NodeStatus> Engine::UncordonNode(const v1::UncordonNodeRequest& request,
                                                    Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "UncordonNode"));
  const std::string name = request.node();
  HF_RETURN_IF_ERROR(NodeView(name, now).status());
  if (!state_.keys.count(request.idempotency_key())) {
    HF_RETURN_IF_ERROR(Run(now, nullptr, [&](Cycle& c) {
      records::NodeRecord* node = c.txn.MutableNode(name);
      node->set_cordoned(false);
      node->clear_cordon_reason();
      AddNodeEvent(c, name, "node.uncordoned", "");
      c.queue_dirty = true;
      RememberKey(c, request.idempotency_key(), "UncordonNode", 0, name);
      return absl::OkStatus();
    }));
  }
  return NodeView(name, now);
}

absl::StatusOr<v1::NodeStatus> Engine::ConfirmNodeDead(const v1::ConfirmNodeDeadRequest& request,
                                                       Now now) {
  HF_RETURN_IF_ERROR(CheckKey(request.idempotency_key(), "ConfirmNodeDead"));
  const std::string name = request.node();
  HF_ASSIGN_OR_RETURN(const v1::NodeStatus view, NodeView(name, now));
  if (!state_.keys.count(request.idempotency_key())) {
    if (view.state() != v1::NODE_STATE_LOST && view.state() != v1::NODE_STATE_SUSPECT) {
      return absl::FailedPreconditionError(absl::StrCat(
          "node ", name, " is ", v1::NodeState_Name(view.state()), " and beats; drain it instead"));
    }
    HF_RETURN_IF_ERROR(Run(now, nullptr, [&](Cycle& c) {
      records::NodeRecord* node = c.txn.MutableNode(name);
      if (!node->lost()) AddNodeEvent(c, name, "node.lost", "an operator's word");
      if (!node->lost()) node->set_lost_reason("an operator confirmed that it is dead");
      node->set_lost(true);
      node->set_confirmed_dead(true);
      AddNodeEvent(c, name, "node.confirmed_dead",
                   "an operator confirmed that it runs nothing any more");
      RememberKey(c, request.idempotency_key(), "ConfirmNodeDead", 0, name);
      return absl::OkStatus();
    }));
  }
  return NodeView(name, now);
}

}  // namespace holdfast::sched
