// SPDX-License-Identifier: Apache-2.0
#include "scheduler/state.h"

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "scheduler/core/job_fsm.h"
#include "scheduler/store/record_codec.h"

namespace holdfast::sched {
namespace {

constexpr char kMetaName[] = "meta";

// A stopped hold of an ended job is dropped with the end, so holds alone tell whether devices are
// busy.
bool IsActive(const records::JobRecord& job) {
  return !IsEnded(job.status().state()) || job.holds_size() > 0;
}

template <typename Message>
absl::Status LoadKind(const StateStore& store, RecordKind kind,
                      const std::function<void(Message)>& add) {
  absl::Status result;
  HF_RETURN_IF_ERROR(
      store.Scan(KindPrefix(kind), "", [&](std::string_view key, std::string_view value) {
        Message message;
        result = DecodeRecord(kind, key, value, &message);
        if (result.ok()) add(std::move(message));
        return result.ok();
      }));
  return result;
}

void IndexJob(State* state, const records::JobRecord& job) {
  const uint64_t id = job.status().id();
  if (IsActive(job)) {
    state->active.insert(id);
  } else {
    state->active.erase(id);
  }
  if (IsEnded(job.status().state())) state->ended.insert(id);
}

std::string KeyOf(const records::CheckpointRecord& record) {
  return CheckpointKey(record.ref().job(), record.ref().step(), record.ref().attempt());
}

}  // namespace

absl::StatusOr<State> LoadState(const StateStore& store) {
  State state;
  HF_ASSIGN_OR_RETURN(const std::optional<std::string> meta,
                      store.Get(NameKey(RecordKind::kMeta, kMetaName)));
  if (meta.has_value())
    HF_RETURN_IF_ERROR(DecodeRecord(RecordKind::kMeta, "meta", *meta, &state.meta));
  state.meta.set_state_uuid(store.uuid());
  HF_RETURN_IF_ERROR(
      LoadKind<records::JobRecord>(store, RecordKind::kJob, [&](records::JobRecord job) {
        IndexJob(&state, job);
        state.jobs[job.status().id()] = std::move(job);
      }));
  HF_RETURN_IF_ERROR(LoadKind<records::NodeRecord>(
      store, RecordKind::kNode,
      [&](records::NodeRecord node) { state.nodes[node.name()] = std::move(node); }));
  HF_RETURN_IF_ERROR(LoadKind<records::CheckpointRecord>(
      store, RecordKind::kCheckpoint, [&](records::CheckpointRecord record) {
        record.clear_record();
        const auto at = std::make_pair(record.ref().step(), record.ref().attempt());
        state.checkpoints[record.ref().job()][at] = std::move(record);
      }));
  HF_RETURN_IF_ERROR(
      LoadKind<records::KeyRecord>(store, RecordKind::kKey, [&](records::KeyRecord key) {
        state.keys_by_age[key.sequence()] = key.key();
        state.keys[key.key()] = std::move(key);
      }));
  HF_RETURN_IF_ERROR(
      LoadKind<v1::LedgerEntry>(store, RecordKind::kLedger, [&](v1::LedgerEntry entry) {
        const uint64_t id = entry.id();
        state.ledger[id] = std::move(entry);
      }));
  HF_RETURN_IF_ERROR(LoadKind<v1::Event>(store, RecordKind::kEvent, [&](v1::Event event) {
    state.last_event = std::max(state.last_event, event.sequence());
  }));
  return state;
}

const records::JobRecord* Txn::FindJob(uint64_t job) const {
  if (const auto it = jobs_.find(job); it != jobs_.end()) return &it->second;
  const auto it = state_->jobs.find(job);
  return it == state_->jobs.end() ? nullptr : &it->second;
}

records::JobRecord* Txn::MutableJob(uint64_t job) {
  if (const auto it = jobs_.find(job); it != jobs_.end()) return &it->second;
  return &(jobs_[job] = state_->jobs.at(job));
}

records::MetaRecord* Txn::Meta() {
  if (!meta_changed_) meta_ = state_->meta;
  meta_changed_ = true;
  return &meta_;
}

void Txn::MutateMeta(const std::function<void(records::MetaRecord*)>& change) { change(Meta()); }

records::JobRecord* Txn::AddJob() {
  records::MetaRecord* meta = Meta();
  const uint64_t id = std::max<uint64_t>(1, meta->next_job());
  meta->set_next_job(id + 1);
  new_jobs_.insert(id);
  records::JobRecord* job = &jobs_[id];
  job->mutable_status()->set_id(id);
  return job;
}

const records::NodeRecord* Txn::FindNode(const std::string& name) const {
  if (const auto it = nodes_.find(name); it != nodes_.end()) return &it->second;
  const auto it = state_->nodes.find(name);
  return it == state_->nodes.end() ? nullptr : &it->second;
}

records::NodeRecord* Txn::MutableNode(const std::string& name) {
  if (const auto it = nodes_.find(name); it != nodes_.end()) return &it->second;
  records::NodeRecord* node = &nodes_[name];
  if (const auto it = state_->nodes.find(name); it != state_->nodes.end()) *node = it->second;
  node->set_name(name);
  return node;
}

std::vector<uint64_t> Txn::ActiveJobs() const {
  std::set<uint64_t> ids = state_->active;
  for (const auto& [id, job] : jobs_) ids.insert(id);
  return {ids.begin(), ids.end()};
}

std::vector<std::string> Txn::NodeNames() const {
  std::set<std::string> names;
  for (const auto& [name, node] : state_->nodes) names.insert(name);
  for (const auto& [name, node] : nodes_) names.insert(name);
  return {names.begin(), names.end()};
}

const records::CheckpointRecord* Txn::FindCheckpoint(uint64_t job, const Point& point) const {
  for (const auto& record : checkpoints_) {
    if (record.ref().job() == job && record.ref().step() == point.step &&
        record.ref().attempt() == point.attempt)
      return &record;
  }
  const auto of_job = state_->checkpoints.find(job);
  if (of_job == state_->checkpoints.end()) return nullptr;
  const auto it = of_job->second.find({point.step, point.attempt});
  return it == of_job->second.end() ? nullptr : &it->second;
}

std::vector<records::CheckpointRecord> Txn::Checkpoints(uint64_t job) const {
  std::map<std::pair<uint64_t, uint64_t>, records::CheckpointRecord> all;
  if (const auto it = state_->checkpoints.find(job); it != state_->checkpoints.end())
    all = it->second;
  for (const auto& record : checkpoints_) {
    if (record.ref().job() == job) all[{record.ref().step(), record.ref().attempt()}] = record;
  }
  std::vector<records::CheckpointRecord> out;
  for (auto& [at, record] : all) out.push_back(std::move(record));
  return out;
}

void Txn::PutCheckpoint(const records::CheckpointRecord& record) { checkpoints_.push_back(record); }

absl::StatusOr<std::string> Txn::ReadCommitRecord(uint64_t job, const Point& point) const {
  for (const auto& record : checkpoints_) {
    if (record.ref().job() == job && record.ref().step() == point.step &&
        record.ref().attempt() == point.attempt) {
      return record.record();
    }
  }
  const std::string key = CheckpointKey(job, point.step, point.attempt);
  HF_ASSIGN_OR_RETURN(const std::optional<std::string> value, store_->Get(key));
  if (!value.has_value()) return absl::NotFoundError(absl::StrCat("no commit record ", key));
  records::CheckpointRecord record;
  HF_RETURN_IF_ERROR(DecodeRecord(RecordKind::kCheckpoint, key, *value, &record));
  return record.record();
}

const records::KeyRecord* Txn::FindKey(const std::string& key) const {
  const auto it = state_->keys.find(key);
  return it == state_->keys.end() ? nullptr : &it->second;
}

void Txn::AddKey(records::KeyRecord key) {
  records::MetaRecord* meta = Meta();
  key.set_sequence(meta->next_key_sequence());
  meta->set_next_key_sequence(meta->next_key_sequence() + 1);
  keys_.push_back(std::move(key));
}

uint64_t Txn::NextIncidentId() {
  records::MetaRecord* meta = Meta();
  const uint64_t id = std::max<uint64_t>(1, meta->next_incident());
  meta->set_next_incident(id + 1);
  return id;
}

v1::LedgerEntry* Txn::AddLedger() {
  records::MetaRecord* meta = Meta();
  const uint64_t id = std::max<uint64_t>(1, meta->next_ledger());
  meta->set_next_ledger(id + 1);
  v1::LedgerEntry* entry = &ledger_[id];
  entry->set_id(id);
  return entry;
}

v1::LedgerEntry* Txn::MutableLedger(uint64_t id) {
  if (const auto it = ledger_.find(id); it != ledger_.end()) return &it->second;
  const auto it = state_->ledger.find(id);
  return it == state_->ledger.end() ? nullptr : &(ledger_[id] = it->second);
}

void Txn::CollectLedger(Batch* batch) {
  size_t count = state_->ledger.size();
  for (const auto& [id, entry] : ledger_) {
    const auto old = state_->ledger.find(id);
    count += old == state_->ledger.end() ? 1 : 0;
    std::string value = EncodeRecord(RecordKind::kLedger, entry);
    if (old != state_->ledger.end() && EncodeRecord(RecordKind::kLedger, old->second) == value)
      continue;
    batch->puts.emplace_back(NumberKey(RecordKind::kLedger, id), std::move(value));
  }
  for (auto it = state_->ledger.begin(); it != state_->ledger.end() && count > kLedgerKeptMax;
       ++it) {
    if (ledger_.count(it->first)) continue;
    dropped_ledger_.push_back(it->first);
    batch->deletes.push_back(NumberKey(RecordKind::kLedger, it->first));
    --count;
  }
}

void Txn::AddEvent(v1::Event event) {
  event.set_sequence(state_->last_event + events_.size() + 1);
  event.set_wall_ns(now_.wall_ns);
  events_.push_back(std::move(event));
}

void Txn::CollectJobs(Batch* batch) const {
  for (const auto& [id, job] : jobs_) {
    std::string value = EncodeRecord(RecordKind::kJob, job);
    const auto old = state_->jobs.find(id);
    if (old != state_->jobs.end() && EncodeRecord(RecordKind::kJob, old->second) == value) continue;
    batch->puts.emplace_back(NumberKey(RecordKind::kJob, id), std::move(value));
  }
}

// At the limit the oldest ended job makes room; its checkpoints' records stay in their stores.
void Txn::MakeRoomForJob(Batch* batch) {
  size_t count = state_->jobs.size() + new_jobs_.size();
  for (const uint64_t id : state_->ended) {
    if (count <= static_cast<size_t>(kJobsMax)) break;
    if (state_->active.count(id) || jobs_.count(id)) continue;
    pruned_jobs_.insert(id);
    batch->deletes.push_back(NumberKey(RecordKind::kJob, id));
    if (const auto it = state_->checkpoints.find(id); it != state_->checkpoints.end()) {
      for (const auto& [at, record] : it->second)
        batch->deletes.push_back(CheckpointKey(id, at.first, at.second));
    }
    --count;
  }
}

void Txn::DropOldCheckpoints(Batch* batch) {
  std::map<uint64_t, size_t> added;
  for (const auto& record : checkpoints_) {
    if (FindCheckpoint(record.ref().job(), {record.ref().attempt(), record.ref().step()}) ==
        &record)
      ++added[record.ref().job()];
  }
  for (const auto& [job, count] : added) {
    const auto of_job = state_->checkpoints.find(job);
    if (of_job == state_->checkpoints.end()) continue;
    size_t excess = of_job->second.size() + count;
    for (auto it = of_job->second.begin();
         it != of_job->second.end() && excess > kCheckpointsPerJobMax; ++it, --excess) {
      dropped_checkpoints_.push_back({job, it->first});
      batch->deletes.push_back(CheckpointKey(job, it->first.first, it->first.second));
    }
  }
}

void Txn::CollectOthers(Batch* batch) {
  for (const auto& [name, node] : nodes_) {
    std::string value = EncodeRecord(RecordKind::kNode, node);
    const auto old = state_->nodes.find(name);
    if (old != state_->nodes.end() && EncodeRecord(RecordKind::kNode, old->second) == value)
      continue;
    batch->puts.emplace_back(NameKey(RecordKind::kNode, name), std::move(value));
  }
  CollectLedger(batch);
  DropOldCheckpoints(batch);
  for (const auto& record : checkpoints_)
    batch->puts.emplace_back(KeyOf(record), EncodeRecord(RecordKind::kCheckpoint, record));
  size_t keys = state_->keys.size() + keys_.size();
  for (auto it = state_->keys_by_age.begin();
       it != state_->keys_by_age.end() && keys > kKeysKeptMax; ++it, --keys) {
    dropped_keys_.push_back(it->second);
    batch->deletes.push_back(NameKey(RecordKind::kKey, it->second));
  }
  for (const auto& key : keys_)
    batch->puts.emplace_back(NameKey(RecordKind::kKey, key.key()),
                             EncodeRecord(RecordKind::kKey, key));
  for (const auto& event : events_) {
    batch->puts.emplace_back(NumberKey(RecordKind::kEvent, event.sequence()),
                             EncodeRecord(RecordKind::kEvent, event));
    if (event.sequence() > static_cast<uint64_t>(kEventsKeptMax)) {
      batch->deletes.push_back(NumberKey(RecordKind::kEvent, event.sequence() - kEventsKeptMax));
    }
  }
  if (meta_changed_)
    batch->puts.emplace_back(NameKey(RecordKind::kMeta, kMetaName),
                             EncodeRecord(RecordKind::kMeta, meta_));
}

void Txn::ApplyToMemory() {
  for (const uint64_t id : pruned_jobs_) {
    state_->jobs.erase(id);
    state_->ended.erase(id);
    state_->checkpoints.erase(id);
  }
  for (auto& [id, job] : jobs_) {
    IndexJob(state_, job);
    state_->jobs[id] = std::move(job);
  }
  for (auto& [name, node] : nodes_) state_->nodes[name] = std::move(node);
  for (const auto& [job, at] : dropped_checkpoints_) state_->checkpoints[job].erase(at);
  for (auto& record : checkpoints_) {
    record.clear_record();
    const auto at = std::make_pair(record.ref().step(), record.ref().attempt());
    state_->checkpoints[record.ref().job()][at] = std::move(record);
  }
  for (const std::string& name : dropped_keys_) {
    state_->keys_by_age.erase(state_->keys[name].sequence());
    state_->keys.erase(name);
  }
  for (auto& key : keys_) {
    state_->keys_by_age[key.sequence()] = key.key();
    state_->keys[key.key()] = key;
  }
  for (const uint64_t id : dropped_ledger_) state_->ledger.erase(id);
  for (auto& [id, entry] : ledger_) state_->ledger[id] = std::move(entry);
  state_->last_event += events_.size();
  if (meta_changed_) state_->meta = meta_;
}

absl::Status Txn::Commit() {
  Batch batch;
  if (!new_jobs_.empty()) MakeRoomForJob(&batch);
  CollectJobs(&batch);
  CollectOthers(&batch);
  if (!batch.empty()) HF_RETURN_IF_ERROR(store_->Apply(batch));
  ApplyToMemory();
  for (const auto& action : after_commit_) action();
  return absl::OkStatus();
}

}  // namespace holdfast::sched
