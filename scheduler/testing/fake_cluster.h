// SPDX-License-Identifier: Apache-2.0
// A whole cluster in one thread: the shipping engine, a store in memory, a clock that moves when
// told, and nodes that behave like agents (they follow desired states, run "ranks", report edges
// and levels). After every turn the invariants below are checked.
//
// Fault model: ranks end, stop or vanish; nodes go silent with or without their ranks and come
// back; the store dies at a given write and the scheduler is rebuilt from what was stored; reports
// arrive late. Not covered: reordering within one agent's stream.
#ifndef HOLDFAST_SCHEDULER_TESTING_FAKE_CLUSTER_H_
#define HOLDFAST_SCHEDULER_TESTING_FAKE_CLUSTER_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "scheduler/engine/engine.h"
#include "scheduler/store/memory_store.h"

namespace holdfast::sched {

struct FakeRank {
  uint64_t attempt = 0;
  v1::RankPhase phase = v1::RANK_PHASE_RUNNING;
  int32_t exit_code = 0;
  int64_t ended_ns = 0;
  uint64_t step = 0;
  int64_t first_step_ns = 0;
  uint32_t worker_phase = 0;
  bool oom = false;
  std::string stderr_tail = {};
  std::optional<v1::Quiet> quiet = {};  // what its agent says of it in each level
  bool alive() const { return phase == v1::RANK_PHASE_RUNNING || phase == v1::RANK_PHASE_STOPPED; }
};

struct FakeJob {
  uint64_t fence_attempt = 0, started_attempt = 0, stop_reported = 0, commits_written = 0;
  std::map<uint32_t, FakeRank> ranks;
  std::map<uint32_t, std::vector<v1::SnapshotId>> arenas;
  std::map<std::pair<Point, uint32_t>, v1::PreparedSave> prepared;
  std::string dirty_reason;
  uint32_t master_port = 0;  // set by a test: where this node serves the ranks' store
};

class FakeNode {
 public:
  FakeNode(std::string name, uint32_t gpus) : name_(std::move(name)), gpus_(gpus) {}

  v1::RegisterNodeRequest Registration(int64_t now_ns) const;
  v1::BeatRequest Beat(int64_t now_ns);
  v1::NodeReport Report(int64_t now_ns) const;
  // Carries out what is wanted; returns the edges. `obey_stops` false: the ranks do not die (D
  // state).
  v1::ReportEventsRequest Apply(const v1::DesiredState& desired, int64_t now_ns);
  v1::RankEvent Event(v1::RankEvent::Kind kind, uint64_t job, uint32_t rank, int64_t now_ns) const;
  v1::ReportEventsRequest Request() const;
  void KillAllRanks(int64_t now_ns);
  void Forget() { jobs.clear(); }  // a reboot

  const std::string& name() const { return name_; }
  std::map<uint64_t, FakeJob> jobs;
  std::map<Point, int> commits_seen, aborts_seen;
  std::map<uint64_t, std::vector<std::pair<v1::DesiredPhase, v1::StopKind>>> orders_seen;  // by job
  std::string boot_id = "boot-1";
  uint64_t epoch = 1;
  bool predecessor_stopped = false;  // the agent before was stopped in order
  bool up = true;                    // the agent runs and reaches the scheduler
  bool start_ranks = true;           // false: RUN is not carried out yet
  bool obey_stops = true;
  bool undone =
      false;  // of the newest desired state something was not carried out: it is tried again
  bool hello = true;  // ranks use the recorder

 private:
  v1::RankReport RankOf(uint64_t job, uint32_t rank, int64_t now_ns) const;
  const std::string name_;
  const uint32_t gpus_;
  uint64_t sequence_ = 0;
};

// A rank's manifest of a checkpoint with one tensor a rank. `digest` differs: replicas disagree.
std::string FakeManifest(uint64_t job, const Point& point, uint32_t rank, uint32_t world,
                         uint64_t shared_digest = 7);

class FakeCluster {
 public:
  explicit FakeCluster(uint32_t nodes = 2, uint32_t gpus = 2);

  Now now() const { return {clock_.MonoNs(), clock_.WallNs()}; }
  Engine& engine() { return *engine_; }
  FakeNode& node(const std::string& name) { return nodes_.at(name); }
  void AddNode(const std::string& name, uint32_t gpus);

  // Delivers desired states and the edges they cause until nothing changes. Checks the invariants.
  void Pump();
  // Time passes: ticks each 100 ms, beats each 500 ms of nodes that are up, probes answered by
  // neighbours that are up.
  void Advance(int64_t ms);
  // Time passes and nobody runs, the scheduler neither: a suspended machine, a stalled disk.
  void Suspend(int64_t ms) { clock_.AdvanceNs(ms * kNsPerMs); }
  void Beat();

  // Opens the scheduler anew on what the store holds; agents register again.
  void RestartScheduler();
  void DieAtWrite(uint64_t write, bool applied) { store_->DieAtWrite(write, applied); }
  bool dead() const { return store_->dead(); }

  uint64_t Submit(const v1::JobSpec& spec, const std::string& key = "");
  v1::JobStatus Job(uint64_t job);
  v1::JobState StateOf(uint64_t job) { return Job(job).state(); }
  std::string NodeOf(uint64_t job, uint32_t rank);
  absl::StatusOr<v1::JobStatus> Cancel(uint64_t job);

  // Ranks of the running attempt do things; each reports at once.
  void Finish(uint64_t job, uint64_t step, bool snapshot, bool persist);
  void Prepare(uint64_t job, uint64_t step);
  void PrepareRank(uint64_t job, const Point& point, uint32_t rank, const std::string& manifest,
                   const std::string& error = "");
  void Exit(uint64_t job, uint32_t rank, int32_t code, const std::string& stderr_tail = "");
  void ExitAll(uint64_t job, int32_t code);
  void Stop(uint64_t job, uint32_t rank);  // SIGSTOP
  void LoseNode(const std::string& name, bool with_ranks);
  void ReturnNode(const std::string& name, bool new_boot);
  void Report(FakeNode& node, const v1::ReportEventsRequest& request);

  std::vector<std::string> EventKinds(uint64_t job);
  v1::Incident LastIncident(uint64_t job);
  std::string Trace();  // every event, for a failure's message

 private:
  bool DeliverTo(FakeNode& node);
  void AnswerProbes();
  void Register(FakeNode& node);
  void CheckInvariants();
  void CheckRuns(uint64_t job, const std::vector<std::pair<std::string, v1::DesiredJob>>& runs);
  void CheckDevices();

  FakeClock clock_;
  std::shared_ptr<MemoryContent> content_ = std::make_shared<MemoryContent>();
  std::unique_ptr<MemoryStore> store_;
  std::unique_ptr<Engine> engine_;
  std::map<std::string, FakeNode> nodes_;
  std::set<std::string> registered_;
  std::map<std::string, std::string> last_desired_;
  std::map<std::pair<uint64_t, uint64_t>, std::string>
      run_as_;  // (job, attempt) -> placement and start point
  std::map<uint64_t, uint64_t> newest_attempt_;
  std::map<uint64_t, v1::JobState> ended_;
  std::set<std::string> committed_;
  std::set<uint64_t> acknowledged_;
  int64_t since_beat_ms_ = 0;
  uint64_t keys_ = 0;
};

v1::JobSpec CommandSpec(uint32_t nodes = 2, uint32_t gpus = 2);
v1::JobSpec TrainerSpec(uint32_t nodes = 2, uint32_t gpus = 2);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_TESTING_FAKE_CLUSTER_H_
