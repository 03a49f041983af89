// SPDX-License-Identifier: Apache-2.0
// The scheduler's state in memory: a view of the store that is rebuilt at start, and the
// transaction that changes both. A change is persisted first, then made in memory, then answered:
// when Commit fails, memory is what it was.
//
// Threads: none of its own; the engine's caller serialises.
#ifndef HOLDFAST_SCHEDULER_STATE_H_
#define HOLDFAST_SCHEDULER_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/core/start_point.h"
#include "scheduler/store/records.pb.h"
#include "scheduler/store/state_store.h"

namespace holdfast::sched {

inline constexpr size_t kKeysKeptMax = 100'000;
inline constexpr size_t kCheckpointsPerJobMax = 1'000;
inline constexpr int kIncidentsPerJobMax = 64;
inline constexpr size_t kLedgerKeptMax = 10'000;

// Moments of one decision. Monotonic for every duration, wall for what people read.
struct Now {
  int64_t mono_ns = 0;
  int64_t wall_ns = 0;
};

struct State {
  records::MetaRecord meta;
  std::map<uint64_t, records::JobRecord> jobs;
  std::map<std::string, records::NodeRecord> nodes;
  // By job, then (step, attempt). `record` is left in the store: it can be large and is needed only
  // for a commit order.
  std::map<uint64_t, std::map<std::pair<uint64_t, uint64_t>, records::CheckpointRecord>>
      checkpoints;
  std::map<std::string, records::KeyRecord> keys;
  std::map<uint64_t, std::string> keys_by_age;
  std::set<uint64_t> active;                   // not ended, or still holding devices
  std::set<uint64_t> ended;                    // by id: the oldest goes first at kJobsMax
  std::map<uint64_t, v1::LedgerEntry> ledger;  // by id
  uint64_t last_event = 0;
};

absl::StatusOr<State> LoadState(const StateStore& store);

// One atomic change. Everything read through it sees its own changes.
class Txn {
 public:
  Txn(State* state, StateStore* store, Now now) : state_(state), store_(store), now_(now) {}
  Txn(const Txn&) = delete;
  Txn& operator=(const Txn&) = delete;

  const State& base() const { return *state_; }
  Now now() const { return now_; }

  const records::JobRecord* FindJob(uint64_t job) const;  // null: no such job
  records::JobRecord* MutableJob(uint64_t job);           // must exist
  records::JobRecord* AddJob();                           // with a fresh id
  const records::NodeRecord* FindNode(const std::string& name) const;
  records::NodeRecord* MutableNode(const std::string& name);  // created when missing
  // Ids of jobs that may need attention: active ones, with those added here.
  std::vector<uint64_t> ActiveJobs() const;
  std::vector<std::string> NodeNames() const;

  const records::CheckpointRecord* FindCheckpoint(uint64_t job,
                                                  const Point& point) const;  // without `record`
  std::vector<records::CheckpointRecord> Checkpoints(
      uint64_t job) const;  // without `record`, by step
  void PutCheckpoint(const records::CheckpointRecord& record);
  absl::StatusOr<std::string> ReadCommitRecord(uint64_t job, const Point& point) const;

  const records::KeyRecord* FindKey(const std::string& key) const;
  void AddKey(records::KeyRecord key);

  uint64_t NextIncidentId();
  v1::LedgerEntry* AddLedger();                 // with a fresh id
  v1::LedgerEntry* MutableLedger(uint64_t id);  // null: it made room for newer ones
  void AddEvent(v1::Event event);
  void MutateMeta(const std::function<void(records::MetaRecord*)>& change);

  // Run after a successful Commit only: for what memory outside the state must follow.
  void AfterCommit(std::function<void()> action) { after_commit_.push_back(std::move(action)); }

  absl::Status Commit();

 private:
  records::MetaRecord* Meta();
  void CollectJobs(Batch* batch) const;
  void CollectOthers(Batch* batch);
  void MakeRoomForJob(Batch* batch);
  void DropOldCheckpoints(Batch* batch);
  void CollectLedger(Batch* batch);
  void ApplyToMemory();

  State* const state_;
  StateStore* const store_;
  const Now now_;
  std::map<uint64_t, records::JobRecord> jobs_;
  std::set<uint64_t> new_jobs_, pruned_jobs_;
  std::map<std::string, records::NodeRecord> nodes_;
  std::vector<records::CheckpointRecord> checkpoints_;
  std::vector<std::pair<uint64_t, std::pair<uint64_t, uint64_t>>> dropped_checkpoints_;
  std::vector<records::KeyRecord> keys_;
  std::vector<std::string> dropped_keys_;
  std::map<uint64_t, v1::LedgerEntry> ledger_;
  std::vector<uint64_t> dropped_ledger_;
  std::vector<v1::Event> events_;
  bool meta_changed_ = false;
  records::MetaRecord meta_;
  std::vector<std::function<void()>> after_commit_;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_STATE_H_
