// SPDX-License-Identifier: Apache-2.0
// What is known but not stored: the newest words of agents, and clocks. All of it comes back by
// itself after a restart of the scheduler, since agents report levels. Decisions read facts and
// state; only state decides what has happened.
#ifndef HOLDFAST_SCHEDULER_ENGINE_FACTS_H_
#define HOLDFAST_SCHEDULER_ENGINE_FACTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "holdfast/v1/agent.pb.h"
#include "scheduler/core/fence_release.h"
#include "scheduler/core/first_cause.h"
#include "scheduler/core/node_liveness.h"
#include "scheduler/core/prepared_sets.h"
#include "scheduler/core/start_point.h"

namespace holdfast::sched {

// One rank of the newest attempt that was handed out.
struct RankFact {
  std::string node;
  v1::RankPhase phase = v1::RANK_PHASE_UNSPECIFIED;  // UNSPECIFIED: not seen yet
  int32_t exit_code = 0;
  bool oom_killed = false;
  int64_t ended_ns = 0;  // exit or disappearance, on our monotonic clock
  int64_t stopped_ns =
      0;  // since when it has been STOPPED; 0: it is not. Kept when it is killed in that state
  int stopped_levels = 0;  // levels in a row that said STOPPED; an edge counts as two
  int moving_levels = 0;   // in a row: its past is known, and it does not differ from it
  v1::Quiet quiet;         // of the newest level
  int quiet_levels = 0;    // levels in a row that said so
  uint64_t step = 0;
  bool has_loss = false;
  double loss = 0;
  uint32_t worker_phase = 0;
  bool hello = false;
  uint64_t first_step = 0;
  int64_t first_step_ns = 0;
  int64_t restored_ns = 0;  // left the restore phase
  uint64_t skipped = 0;
  std::string message, stderr_tail, detail;
  int missing_levels = 0;  // levels in a row that did not mention it although it was seen
  bool vanished = false;
  bool start_is_program = false;
};

// What a node last said about a job.
struct NodeOfJob {
  bool known = false;  // its agent mentions the job
  uint64_t attempt = 0;
  bool clean = false;
  bool ranks_ended = false;  // every rank it lists has ended
  std::string dirty_reason;
  uint64_t commits_written = 0;
  uint32_t master_port = 0;  // where it serves the TCPStore of `attempt`; 0: it does not
  // Of the order to stop: whether it went out, and how many levels came since. A level alone is
  // believed from the second on, because the first may have been on its way already.
  bool stop_ordered = false;
  bool stop_delivered = false;
  int levels_since = 0;
  bool stop_complete = false;  // the node said so
};

struct PendingOrder {
  v1::CommitOrder order;
  bool delivered = false;
  int levels_since = 0;
};

struct JobFacts {
  uint64_t attempt = 0;  // of `ranks`
  std::map<uint32_t, RankFact> ranks;
  std::map<std::string, NodeOfJob> nodes;
  std::map<std::string, NodeArenas> arenas;
  PreparedSets saves;
  std::map<std::string, std::map<Point, PendingOrder>> orders;  // by node
  std::set<Point> written;  // commit records that at least one store has
  uint64_t newest_complete_step = 0;
  int64_t newest_complete_ns = 0;           // when it was seen
  Point newest_persist;                     // the newest snapshot that a rank wants in the store
  int64_t fault_ns = 0;                     // of the open incident
  std::vector<RankFailure> first_failures;  // that began the recovery
  int64_t stop_ordered_ns = 0;
  int64_t running_since_ns = 0;
  int64_t all_ended_ns = 0;    // COMMITTING since
  int64_t all_stopped_ns = 0;  // STOPPING: every node is clean since
  int64_t deadline_ns = 0;     // time limit; 0: none or not started
  int64_t queued_since_ns = 0;
  std::set<std::string> late_losses;  // nodes that were lost while the job was already recovering
  std::string waiting;                // what the job waits for right now
  bool hello_ever = false;
  std::string
      store_end;  // how the attempt's rendezvous store ended before its ranks; empty: it did not
  int64_t store_end_ns = 0;
};

struct NodeFacts {
  int64_t last_beat_ns = 0;  // or the start of the fresh lease
  bool level_seen = false;   // since this scheduler started
  uint64_t beat_sequence = 0;
  Liveness liveness = Liveness::kReady;
  std::string reason;
  bool loss_held = false;
  std::map<std::string, ProbeAnswer> answers;
  uint32_t asked = 0;
  std::map<std::string, WitnessWord> words;
  std::set<uint64_t> jobs;  // its agent mentions
  std::string unknown;      // processes and jobs that nobody here knows
  // Of these, what still runs: its devices are not free, whatever this scheduler's records say.
  std::string foreign;
};

struct Facts {
  std::map<uint64_t, JobFacts> jobs;  // entries of ended, clean jobs are erased
  std::map<std::string, NodeFacts> nodes;
  MassLossGuard mass_loss;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_FACTS_H_
