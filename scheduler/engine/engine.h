// SPDX-License-Identifier: Apache-2.0
// The scheduler without its daemon: (state, input, now) -> new records, desired states, events,
// incidents. Deterministic: no clock, no thread, no network; the store is the only thing it
// touches. Tests and the simulator drive this very class with a fake clock and a store in memory.
//
// Threads: none of its own; the caller serialises. Every call that changes something either
// persists the change before it returns OK, or returns an error and has changed nothing that is not
// learned again from the next level.
#ifndef HOLDFAST_SCHEDULER_ENGINE_ENGINE_H_
#define HOLDFAST_SCHEDULER_ENGINE_ENGINE_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/agent.pb.h"
#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/engine/cycle.h"
#include "scheduler/engine/facts.h"
#include "scheduler/state.h"

namespace holdfast::sched {

// Ask the agent at `address`: can you hear `target`?
struct ProbeTask {
  std::string neighbour, neighbour_address;
  std::string target, target_address;
};

// What a watcher of the engine must do after a call.
struct Changes {
  std::set<std::string> nodes;  // their desired state may have changed
  uint64_t last_event = 0;
};

class Engine {
 public:
  // Reads the state and raises the scheduler's epoch, durably. Every node gets a full fresh lease.
  // `store` must outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(StateStore* store, EngineOptions options,
                                                      Now now);

  // Agents.
  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const v1::RegisterNodeRequest& request,
                                                        Now now);
  absl::StatusOr<v1::BeatResponse> Beat(const v1::BeatRequest& request, Now now);
  absl::Status ReportEvents(const v1::ReportEventsRequest& request, Now now);
  // FAILED_PRECONDITION unless this is the agent that has registered.
  absl::Status CheckAgent(const std::string& node, const std::string& boot_id,
                          uint64_t agent_epoch) const;
  v1::DesiredState Desired(const std::string& node) const;  // version unset
  void NoteDesiredSent(const std::string& node, const v1::DesiredState& desired);

  // Loops.
  absl::Status Tick(Now now);
  std::vector<ProbeTask> DueProbes(Now now) const;
  absl::Status NoteProbe(const ProbeTask& task, bool answered, const v1::ProbePeerResponse& answer,
                         Now now);

  // Users.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request, Now now);
  absl::StatusOr<v1::JobStatus> GetJob(const std::string& job, Now now) const;
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request, Now now) const;
  absl::StatusOr<v1::JobStatus> CancelJob(const v1::CancelJobRequest& request, Now now);
  absl::StatusOr<v1::JobStatus> RestartJob(const v1::RestartJobRequest& request, Now now);
  absl::StatusOr<v1::SaveJobResponse> SaveJob(const v1::SaveJobRequest& request, Now now);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job) const;
  absl::StatusOr<v1::ListLedgerResponse> ListLedger(const v1::ListLedgerRequest& request) const;
  absl::StatusOr<v1::JobStatus> SetModes(const v1::SetModesRequest& request, Now now);
  v1::ListNodesResponse ListNodes(Now now) const;
  absl::StatusOr<v1::NodeStatus> DrainNode(const v1::DrainNodeRequest& request, Now now);
  absl::StatusOr<v1::NodeStatus> UncordonNode(const v1::UncordonNodeRequest& request, Now now);
  absl::StatusOr<v1::NodeStatus> ConfirmNodeDead(const v1::ConfirmNodeDeadRequest& request,
                                                 Now now);
  // Events after `after`, oldest first, at most `limit`, of one job unless 0.
  absl::StatusOr<std::vector<v1::Event>> Events(uint64_t after, size_t limit, uint64_t job) const;
  // "j-42" or a name; NOT_FOUND, or FAILED_PRECONDITION with the ids when several jobs have the
  // name.
  absl::StatusOr<uint64_t> ResolveJob(const std::string& job) const;

  Changes TakeChanges();
  const State& state() const { return state_; }
  uint64_t epoch() const { return state_.meta.epoch(); }

 private:
  Engine(StateStore* store, EngineOptions options) : store_(store), options_(std::move(options)) {}

  // Runs `decide`, settles `jobs` (all active ones when null) and the queue, commits.
  absl::Status Run(Now now, const std::set<uint64_t>* jobs,
                   const std::function<absl::Status(Cycle&)>& decide);
  std::set<uint64_t> JobsOnNode(const std::string& node) const;
  void JudgeNodes(Cycle& c);
  // While this scheduler itself did not run, nobody was heard: that is no node's silence.
  void ForgiveOwnStall(Now now);
  void ChooseWitnesses(Cycle& c, const std::string& node);
  bool AnotherAgentLives(const records::NodeRecord& node, const v1::RegisterNodeRequest& request,
                         Now now) const;
  absl::Status CheckKey(const std::string& key, const std::string& method) const;
  absl::StatusOr<v1::NodeStatus> NodeView(const std::string& node, Now now) const;
  // For the const views: a cycle that never commits.
  template <typename F>
  auto WithCycle(Now now, F f) const;

  StateStore* const store_;
  const EngineOptions options_;
  State state_;
  Facts facts_;
  std::set<std::string> dirty_nodes_;
  bool queue_dirty_ = true;
  int64_t queue_tried_ns_ = 0;
  int64_t last_tick_ns_ = 0;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_ENGINE_H_
