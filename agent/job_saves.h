// SPDX-License-Identifier: Apache-2.0
// The saves of one job on this node: which snapshots are being written, which are PREPARED and not
// yet decided, which commit orders are carried out. All of it can be found again after a restart:
// in the arenas, in the store and in the orders, which are a level. The loop's thread only.
#ifndef HOLDFAST_AGENT_JOB_SAVES_H_
#define HOLDFAST_AGENT_JOB_SAVES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "agent/saver.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

inline constexpr size_t kPreparedPerJobMax = 4096;

class JobSaves {
 public:
  // `report` gets every new prepared or failed save, for the scheduler.
  JobSaves(JobId job, EventLoop* loop, Saver* saver,
           std::function<void(const v1::PreparedSave&)> report);
  ~JobSaves();
  JobSaves(const JobSaves&) = delete;
  JobSaves& operator=(const JobSaves&) = delete;

  // Older attempts save nothing any more: what they sealed is off the line, and its buffers must
  // not wait.
  void RaiseFence(uint64_t attempt);
  void SetStore(const std::string& directory) { store_ = directory; }

  void Sealed(uint32_t rank, uint32_t buffer, uint64_t attempt, uint64_t step,
              std::shared_ptr<Arena> arena);
  // After attaching to a keeper: what waits in an arena. `fresh` = this agent has just begun, so no
  // save of it can be running.
  void ScanArena(uint32_t rank, const std::shared_ptr<Arena>& arena, bool fresh);
  // After a restart: what an earlier agent prepared of these ranks.
  void CollectPrepared(const std::map<uint32_t, std::shared_ptr<Arena>>& arenas);

  void ApplyOrders(const v1::DesiredJob& desired);
  uint64_t commits_written() const { return commits_written_; }
  // Into a beat: manifests only above `acknowledged_step` of `attempt`, and only while `bytes_left`
  // lasts.
  void AddPrepared(uint64_t attempt, uint64_t acknowledged_step, size_t* bytes_left,
                   v1::NodeReport* out) const;
  bool busy() const { return !saving_.empty() || !ordered_.empty(); }

 private:
  using Key = std::tuple<uint64_t, uint64_t, uint32_t>;  // attempt, step, rank
  using StepKey = std::pair<uint64_t, uint64_t>;         // attempt, step
  void Keep(v1::PreparedSave save);
  void Ordered(const v1::CommitOrder& order, const absl::Status& status);

  const JobId job_;
  EventLoop* const loop_;
  Saver* const saver_;
  std::function<void(const v1::PreparedSave&)> report_;
  std::string store_;
  std::shared_ptr<std::atomic<uint64_t>>
      fence_;                    // shared with saves that wait in the saver's queue
  std::shared_ptr<bool> alive_;  // shared with callbacks that may come after the end of this object
  std::set<Key> saving_;
  std::map<Key, v1::PreparedSave> prepared_;
  std::set<StepKey> ordered_;             // being carried out
  std::set<StepKey> done_;                // orders carried out and still in the level
  std::map<StepKey, int64_t> failed_ns_;  // an order that failed, and when
  uint64_t commits_written_ = 0;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_JOB_SAVES_H_
