// SPDX-License-Identifier: Apache-2.0
// One job on this node: its keeper, its ranks, its saves, its rendezvous store, and what the
// scheduler wants of it. Reconcile() is called after everything that changes and carries out what
// the pure core says.
//
//   node_job.cc           orders: reconcile, start, stop, forget
//   node_job_keeper.cc    what the keeper says; adoption; the keeper's end
//   node_job_store.cc     store requests of ranks, here and on other nodes
//
// The loop's thread only.
#ifndef HOLDFAST_AGENT_NODE_JOB_H_
#define HOLDFAST_AGENT_NODE_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "agent/activity_watcher.h"
#include "agent/core/job_spec_on_node.h"
#include "agent/core/reconcile.h"
#include "agent/core/step_log.h"
#include "agent/core/stop_ladder.h"
#include "agent/event_loop.h"
#include "agent/job_saves.h"
#include "agent/job_store.h"
#include "agent/keeper_handle.h"
#include "agent/local_rank.h"
#include "agent/node_options.h"
#include "agent/peer_client.h"
#include "agent/process.h"
#include "agent/saver.h"
#include "agent/work_queue.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

// Correlates an error of the keeper with what was asked.
inline constexpr uint32_t kStartRequest = 1;
inline constexpr uint32_t kQuitRequest = 2;

// What a job needs of its node. Everything outlives the jobs.
struct JobContext {
  EventLoop* loop;
  const NodeOptions* options;
  Saver* saver;
  WorkQueue* files;  // evidence
  PeerClient* peers;
  ActivityWatcher* activity;
  const std::string* state_uuid;
  bool simulated_devices;
  // An edge for the scheduler; `with_level`: send the node's level right behind it.
  std::function<void(v1::RankEvent event, int64_t at_ns, bool with_level)> emit;
  std::function<void(const v1::PreparedSave&)> emit_prepared;
  std::function<void(uint64_t job)> forgotten;                             // destroy the job, later
  std::function<std::optional<int64_t>(int64_t fence_ms)> fence_deadline;  // FenceGuard::DeadlineNs
};

class NodeJob final : private KeeperHandle::Owner {
 public:
  NodeJob(JobId id, const JobContext& context);
  ~NodeJob() override;
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  // From the directory that an earlier agent left.
  void Adopt();
  // Processes of this job live that its keeper does not account for, of `attempt` at most (0: not
  // known): somebody removed the keeper's directory. They are reported, and killed only when the
  // scheduler orders something for which they must be gone.
  void FoundStrays(uint64_t attempt);
  // Whether a process that says it is of this job is to be believed: it runs as the agent's user or
  // the job's, or under a keeper of the agent's user.
  bool Believes(const FoundProcess& process) const;
  // The keeper accounts for this process.
  bool Owns(pid_t pid) const;
  void SetDesired(const v1::DesiredJob& desired);
  void Reconcile();
  // Each few ms while ranks live: steps, first steps, pending stops. `slow`: look at cgroups too.
  void Poll(bool slow);
  // At each beat: failed commit orders, ranks' control words.
  void Refresh();
  // 0: none. Only for jobs that are fenced by witnesses.
  void SetFence(int64_t deadline_ns);
  bool WantsFence() const;
  int64_t fence_ms() const;

  bool AnyAlive() const;
  void AddWatched(std::vector<WatchedRank>* out) const;
  void AddReport(int64_t now_ns, v1::NodeReport* out) const;
  void AddPrepared(size_t* bytes_left, v1::NodeReport* out) const;

  // A rank of another node asks the store that this node serves. `reply` gets a packet, or "" when
  // the caller is gone, or UNAVAILABLE: not yet, ask again. Returns a number for AbandonStoreWait,
  // 0 when answered.
  using StoreReply = std::function<void(absl::StatusOr<std::string>)>;
  uint64_t StoreRequest(uint64_t client, const std::string& packet, StoreReply reply);
  void AbandonStoreWait(uint64_t attempt, uint64_t wait);

  // For log streams: false while the rank of that attempt may still write.
  bool LogIsFinal(uint32_t rank, uint64_t attempt, std::string* why) const;
  // Where its logs are: kept beside the state once the job's directory is removed.
  std::string log_dir() const;
  uint64_t started_attempt() const { return started_attempt_; }

 private:
  struct Forward;  // a rank's request on its way to another node

  // node_job.cc
  ObservedJob Observe();
  void CarryOut(const Action& action);
  void RaiseFence(uint64_t attempt);
  void StartKeeper();
  void StartRanks(uint64_t attempt);
  // `descriptors`: the spec's file and, where the ranks' TCPStore is served, its socket.
  absl::Status PrepareStart(uint64_t attempt, std::vector<UniqueFd>* descriptors);
  absl::Status OpenMaster(NodeFacts* facts, UniqueFd* socket);
  // `program`: what the job asked for cannot be started anywhere; else this node is at fault.
  void FailStart(uint64_t attempt, const std::string& why, bool program);
  void StopRanks(const Action& action);
  void StepLadder();
  void LookForLeftBehind();
  void LookForStrays();
  std::vector<FoundProcess> Strays() const;
  void KillLeftBehind();
  bool AnyDying();
  void Forget();
  void RemoveDirectory();
  void ReconcileAt(int64_t at_ns);
  void WriteControl();
  void OpenStepLog();
  void LookForUnkillable();
  bool FencedByWitness() const;
  int64_t FirstFenceNs() const;
  void FlushSteps(bool last);
  void MarkLogTimes();
  void Emit(v1::RankEvent::Kind kind, const LocalRank* rank, int64_t at_ns,
            const std::string& detail = "");
  void EmitEdges(LocalRank* rank, const std::vector<RankEdge>& edges);
  void KeepEvidence(const LocalRank& rank);
  v1::RankReport EmptyReport(uint64_t attempt) const;
  NodeFacts Facts() const;

  // node_job_keeper.cc
  void KeeperConnected() override;
  void KeeperPacket(const rank::Message& message, std::string_view payload,
                    std::vector<UniqueFd> fds) override;
  void KeeperGone(bool connected, const std::string& why) override;
  void OnState(const rank::Message& message, std::vector<UniqueFd> fds);
  void OnStateEnd();
  void OnStarted(const rank::Message& message, std::vector<UniqueFd> fds);
  void OnStartFailed(const rank::Message& message, std::string_view payload);
  void OnExited(const rank::Message& message);
  void OnServiceEnded(const rank::Message& message);
  void OnStandby(const rank::Message& message);
  void OnPaused(const rank::Message& message);
  void OnSealed(const rank::Message& message);
  void OnError(const rank::Message& message, std::string_view payload);
  void TakeMemory(LocalRank* rank, std::vector<UniqueFd> fds);
  void BuryRanks();
  void LoadSpec(uint64_t attempt);
  uint64_t NewestSpec() const;
  void LoadExits();
  LocalRank* FindRank(uint64_t rank, uint64_t attempt);

  // node_job_store.cc
  void OpenStore(uint64_t attempt, bool only_existing);
  void OnForward(const rank::Message& message, std::string_view payload);
  void AnswerRank(uint32_t peer, const std::string& packet);
  void SendForward(const std::shared_ptr<Forward>& forward);

  const JobId id_;
  const JobContext context_;
  const std::string dir_;
  KeeperHandle keeper_;
  JobSaves saves_;

  std::optional<v1::DesiredJob> desired_;
  std::map<uint32_t, LocalRank> ranks_;
  rank::StartSpec spec_;      // of started_attempt_
  uint16_t master_port_ = 0;  // of started_attempt_, when its TCPStore is served here
  v1::DesiredJob started_;    // the order it was started by
  bool known_ = false;        // the directory exists
  bool removed_ = false;      // it did, and this object is about to go
  bool attached_ = false;     // the keeper told its state
  bool first_attach_ = true;
  bool burying_ = false;  // the keeper is dead, its ranks are being made sure of
  int64_t burying_since_ns_ = 0;
  std::string keeper_error_;
  int keeper_failures_ = 0;
  int64_t keeper_retry_ns_ = 0;
  bool quitting_ = false;
  bool bad_order_told_ = false;

  uint64_t fence_attempt_ = 0;
  uint64_t started_attempt_ = 0;
  uint64_t told_attempt_ = 0;           // newest that the keeper named while it told its state
  std::set<uint32_t> starting_;         // ranks that the keeper has not yet answered for
  std::map<pid_t, uint32_t> standbys_;  // of the keeper, with the rank that each waits for
  StopState stop_;
  uint64_t stop_reported_ = 0;
  bool left_behind_ = false;
  bool strays_ = false;  // processes of a keeper this agent does not know live
  int64_t left_since_ns_ = 0;
  std::vector<UniqueFd> dying_;  // killed processes of no rank, until they are gone for good
  std::string dirty_reason_;
  uint64_t evidence_attempt_ = 0;

  std::unique_ptr<StepLog> step_log_;
  std::string step_error_;
  std::unique_ptr<JobStore> store_;
  std::string rendezvous_;  // address of the agent that serves the store; empty: this one
  std::map<uint32_t, std::shared_ptr<Forward>>
      forwards_;  // by connection; also held by calls under way
  uint64_t wake_timer_ = 0;
  int64_t wake_at_ns_ = 0;
  std::shared_ptr<bool>
      alive_;  // also held by callbacks that may come after the end of this object
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_NODE_JOB_H_
