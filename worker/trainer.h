// SPDX-License-Identifier: Apache-2.0
// The training loop of one rank. One step, on all ranks: forward and backward passes, gradients
// summed over dp bucket by bucket, one last reduction of a few numbers over all ranks (loss,
// gradient norm, and what must be agreed: snapshot ready, stop, save), then the update, then the
// snapshot. Nothing is applied before that last collective, so a failure leaves every rank at the
// same step.
#ifndef HOLDFAST_WORKER_TRAINER_H_
#define HOLDFAST_WORKER_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "parallel/collectives.h"
#include "parallel/mesh.h"
#include "worker/config.h"
#include "worker/data/loader.h"
#include "worker/llama.h"
#include "worker/rank_link.h"
#include "worker/restore.h"
#include "worker/state.h"

namespace holdfast::worker {

// A drill: one rank leaves micro-batch 0 out of its gradient at one step, as a silent fault would.
// step 0: none.
struct DropMicroBatch {
  int64_t step = 0, rank = 0;
};

struct TrainerOptions {
  Config config;  // with parallel.dp resolved
  int64_t snapshot_every = 1,
          persist_every = 0;  // steps; 0: never (the last step is always persisted)
  DropMicroBatch drop;
  std::function<void(const rank::StepRecord&)> on_step;  // after each finished step; may be empty
};

enum class RunEnd { kDone, kStopped, kStale };

// Not owned: groups' peers, link, data and clock outlive the trainer. One thread.
class Trainer {
 public:
  Trainer(TrainerOptions options, const parallel::Mesh& mesh, parallel::Groups groups,
          RankLink* link, const SampleSource* data, const Clock* clock);

  // Arena, then the state: from the link's snapshot, the checkpoint `restore` names, or the seed.
  absl::StatusOr<StartPoint> Prepare(const std::string& restore);

  // Steps until the last one, a stop, or a newer attempt. UNAVAILABLE: a peer is lost.
  // OUT_OF_RANGE: loss or gradient not finite. DATA_LOSS and the like: data. ABORTED: the snapshot
  // could not be sealed.
  absl::StatusOr<RunEnd> Run();

  TrainState& state() { return state_; }
  uint64_t step() const { return position_.step; }  // newest finished

 private:
  struct Agreed {  // what the last reduction gave, equal on all ranks
    double loss = 0, grad_norm = 0;
    bool ready = false, stop = false;
    uint64_t save_requests = 0;
  };
  absl::StatusOr<RunEnd> Step(int64_t step, bool* more);
  absl::StatusOr<double> AccumulateGradients(int64_t step);
  absl::Status ReadBatch(int64_t micro_batch, at::Tensor* tokens) const;
  absl::StatusOr<Agreed> Reduce(int64_t step, double loss_sum);
  absl::Status Snapshot(int64_t step, const Agreed& agreed, bool last, uint64_t* stall_ns);
  absl::StatusOr<bool> WaitUntilReady();

  TrainerOptions options_;
  parallel::Mesh mesh_;
  parallel::Groups groups_;
  RankLink* link_;
  const SampleSource* data_;
  const Clock* clock_;
  TrainState state_;
  Llama model_;
  std::vector<ckpt::TensorView> views_;
  StartPoint position_;
  uint64_t save_requests_seen_ = 0;
  int64_t previous_done_ns_ = 0;
  bool persist_owed_ = false;  // asked for at a step whose snapshot had to be skipped
};

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_TRAINER_H_
