// SPDX-License-Identifier: Apache-2.0
// For tests: all ranks of a small job as threads of this process, meeting through a c10d HashStore.
#ifndef HOLDFAST_WORKER_TESTING_RANK_THREADS_H_
#define HOLDFAST_WORKER_TESTING_RANK_THREADS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/testing/arena_link.h"
#include "worker/trainer.h"

namespace holdfast::worker {

// One rank's box of a global tensor, copied out when the run ended.
struct HeldBox {
  std::string name;  // "param.x", "exp_avg.x", "exp_avg_sq.x", "grad.x"
  std::vector<uint64_t> global_shape, offset, size;
  uint32_t replica = 0;
  std::vector<float> values;
};

struct RankOutcome {
  absl::Status status;
  RunEnd end = RunEnd::kDone;
  StartPoint start;
  std::vector<rank::StepRecord> records;
  std::vector<uint64_t> sealed, persisted;
  int skipped = 0;
  std::vector<HeldBox> boxes;
};

struct RunPlan {
  Config config = {};                          // dp and tp decide how many ranks run
  std::vector<ArenaMemory>* arenas = nullptr;  // one a rank; null: no arena
  uint64_t attempt = 1;
  int64_t snapshot_every = 1, persist_every = 0;
  std::string restore = {};  // HOLDFAST_RESTORE
  DropMicroBatch drop = {};
  bool skip_gradient_reduction = false;  // a fault: every dp coordinate keeps its own gradients
  std::function<void(int rank, ArenaLink* link)> arrange = {};
  std::function<void(int rank, TrainState* state)> after_prepare = {};
};

std::vector<RankOutcome> RunRanks(const RunPlan& plan);

// Global tensors from the boxes of replica 0. `problem` names a tensor whose replicas differ in any
// bit, or that has holes.
std::map<std::string, std::vector<float>> Assemble(const std::vector<RankOutcome>& ranks,
                                                   std::string* problem);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_TESTING_RANK_THREADS_H_
