// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <poll.h>

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/optimizer.h"

namespace holdfast::worker {
namespace {

constexpr int64_t kSnapshotWaitMs = 120'000;  // for a buffer, when a snapshot must not be skipped
constexpr int kSnapshotPollMs = 5;

// Places in the vector of the last reduction; all are sums over all ranks.
enum Slot { kLoss, kSplitSquares, kReplicatedSquares, kNotReady, kStop, kSaveRequests, kSlots };

}  // namespace

Trainer::Trainer(TrainerOptions options, const parallel::Mesh& mesh, parallel::Groups groups,
                 RankLink* link, const SampleSource* data, const Clock* clock)
    : options_(std::move(options)),
      mesh_(mesh),
      groups_(std::move(groups)),
      link_(link),
      data_(data),
      clock_(clock),
      state_(options_.config.model, mesh),
      model_(options_.config.model, &state_, groups_.tp.get()),
      views_(state_.Views()) {}

absl::StatusOr<StartPoint> Trainer::Prepare(const std::string& restore) {
  if (link_->HasArena()) {
    HF_RETURN_IF_ERROR(
        link_->WantArena(ckpt::SnapshotBytes(views_), static_cast<uint32_t>(views_.size())));
  }
  HF_ASSIGN_OR_RETURN(position_, Restore(link_, restore, views_));
  if (position_.step == 0) state_.Initialise(static_cast<uint64_t>(options_.config.train.seed));
  return position_;
}

absl::StatusOr<RunEnd> Trainer::Run() {
  const int64_t steps = options_.config.train.steps;
  if (static_cast<int64_t>(position_.step) > steps) {
    return absl::InvalidArgumentError(absl::StrCat("train.steps: ", steps, " is less than step ",
                                                   position_.step, ", from which this run starts"));
  }
  if (static_cast<int64_t>(position_.step) >= steps) {
    // An attempt that starts behind the last step has nothing to train, but this state must reach
    // the store.
    Agreed nothing_ready;
    uint64_t stall_ns = 0;
    HF_RETURN_IF_ERROR(
        Snapshot(static_cast<int64_t>(position_.step), nothing_ready, /*last=*/true, &stall_ns));
    return RunEnd::kDone;
  }
  bool more = true;
  RunEnd end = RunEnd::kDone;
  for (int64_t step = static_cast<int64_t>(position_.step) + 1; more && step <= steps; ++step) {
    HF_ASSIGN_OR_RETURN(end, Step(step, &more));
  }
  return end;
}

absl::StatusOr<RunEnd> Trainer::Step(int64_t step, bool* more) {
  const Config& config = options_.config;
  *more = false;
  if (!link_->AttemptIsCurrent()) return RunEnd::kStale;
  const int64_t begin_ns = clock_->MonoNs();
  HF_ASSIGN_OR_RETURN(const double loss_sum, AccumulateGradients(step));
  link_->EnterPhase(rank::kPhaseReduce, step, 0);
  HF_ASSIGN_OR_RETURN(const Agreed agreed, Reduce(step, loss_sum));
  if (!std::isfinite(agreed.loss) || !std::isfinite(agreed.grad_norm)) {
    return absl::OutOfRangeError(absl::StrCat(
        "step ", step, ": loss ", agreed.loss, ", gradient norm ", agreed.grad_norm,
        ": not finite; the step was not applied. Lower optimizer.lr or look at the data"));
  }
  link_->EnterPhase(rank::kPhaseOptimizer, step, 0);
  const double lr = LearningRate(config.optimizer, step, config.train.steps);
  HF_RETURN_IF_ERROR(parallel::Guard("optimizer", [&] {
    AdamWStep(config.optimizer, lr, step, ClipFactor(config.optimizer.clip_norm, agreed.grad_norm),
              state_.buckets());
  }));
  const int64_t step_samples = mesh_.dp() * config.train.micro_batch * config.train.accumulate;
  position_.samples += static_cast<uint64_t>(step_samples);
  position_.step = static_cast<uint64_t>(step);
  const bool last = step == config.train.steps;
  rank::StepRecord record{.step = position_.step,
                          .samples = position_.samples,
                          .loss = agreed.loss,
                          .grad_norm = agreed.grad_norm,
                          .lr = lr,
                          .done_ns = static_cast<uint64_t>(clock_->MonoNs())};
  const int64_t since_ns =
      previous_done_ns_ == 0 ? begin_ns : previous_done_ns_;  // stalls of snapshots included
  previous_done_ns_ = static_cast<int64_t>(record.done_ns);
  record.tokens_per_s = static_cast<double>(step_samples * config.model.seq_len) * kNsPerSec /
                        (previous_done_ns_ - since_ns + 1);
  if (!link_->AttemptIsCurrent()) return RunEnd::kStale;
  // Recorded before it is sealed: a later attempt may start behind this step, and then nobody else
  // would tell of it.
  link_->FinishStep(record);
  HF_RETURN_IF_ERROR(Snapshot(step, agreed, last, &record.snapshot_stall_ns));
  if (record.snapshot_stall_ns > 0)
    link_->FinishStep(record);  // the same slot, now with what the snapshot cost
  if (options_.on_step) options_.on_step(record);
  *more = !agreed.stop;
  return agreed.stop && !last ? RunEnd::kStopped : RunEnd::kDone;
}

absl::Status Trainer::ReadBatch(int64_t micro_batch, at::Tensor* tokens) const {
  const int64_t width = options_.config.model.seq_len + 1, rows = options_.config.train.micro_batch;
  const uint64_t first =
      FirstSample({position_.samples, mesh_.dp(), mesh_.dp_index(), rows, micro_batch});
  *tokens = at::empty({rows, width}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    HF_RETURN_IF_ERROR(data_->Read(first + row, tokens->data_ptr<int64_t>() + row * width));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Trainer::AccumulateGradients(int64_t step) {
  const TrainConfig& train = options_.config.train;
  const double tokens_all = static_cast<double>(mesh_.dp() * train.micro_batch * train.accumulate *
                                                options_.config.model.seq_len);
  double loss_sum = 0;
  state_.ZeroGradients();
  for (int64_t m = 0; m < train.accumulate; ++m) {
    at::Tensor tokens, loss;
    link_->EnterPhase(rank::kPhaseData, step, m);
    HF_RETURN_IF_ERROR(ReadBatch(m, &tokens));
    link_->EnterPhase(rank::kPhaseForward, step, m);
    HF_RETURN_IF_ERROR(parallel::Guard(absl::StrCat("forward pass of step ", step), [&] {
      loss = model_.LossSum(tokens);
      loss_sum += loss.item<float>();
    }));
    link_->EnterPhase(rank::kPhaseBackward, step, m);
    // The tensor-parallel peers of the rank share its micro-batch: they leave it out together.
    const bool dropped =
        m == 0 && options_.drop.step == step && options_.drop.rank / mesh_.tp() == mesh_.dp_index();
    HF_RETURN_IF_ERROR(parallel::Guard(absl::StrCat("backward pass of step ", step), [&] {
      // A dropped one still runs (its collectives must happen), with no weight.
      loss.backward(at::full({}, dropped ? 0.0 : 1.0 / tokens_all, loss.options()));
    }));
  }
  return loss_sum / tokens_all;
}

absl::StatusOr<Trainer::Agreed> Trainer::Reduce(int64_t step, double loss_sum) {
  std::array<double, kSlots> sums{};
  HF_RETURN_IF_ERROR(parallel::Guard(absl::StrCat("reduction of step ", step), [&] {
    for (FlatBucket& bucket : state_.buckets())
      groups_.dp->AllReduce(bucket.grad, parallel::Reduce::kSum);
    // Every dp coordinate holds the same gradients now, every tp coordinate the same loss: each is
    // counted once.
    const SquareSums squares = GradientSquares(state_.buckets());
    if (mesh_.tp_index() == 0) sums[kLoss] = loss_sum;
    if (mesh_.dp_index() == 0) sums[kSplitSquares] = squares.split;
    if (mesh_.rank() == 0) sums[kReplicatedSquares] = squares.replicated;
    sums[kNotReady] = link_->HasArena() && link_->SnapshotReady() ? 0 : 1;
    sums[kStop] = link_->ShouldStop() == rank::kStopNone ? 0 : 1;
    sums[kSaveRequests] = mesh_.rank() == 0 ? static_cast<double>(link_->SaveRequests()) : 0;
    at::Tensor tensor = at::from_blob(sums.data(), {kSlots}, at::kDouble);
    groups_.world->AllReduce(tensor, parallel::Reduce::kSum);
  }));
  return Agreed{sums[kLoss], std::sqrt(sums[kSplitSquares] + sums[kReplicatedSquares]),
                sums[kNotReady] == 0, sums[kStop] > 0, static_cast<uint64_t>(sums[kSaveRequests])};
}

absl::Status Trainer::Snapshot(int64_t step, const Agreed& agreed, bool last, uint64_t* stall_ns) {
  if (!link_->HasArena()) return absl::OkStatus();
  const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
  const bool must = last || agreed.stop;
  persist_owed_ |=
      must || due(options_.persist_every) || agreed.save_requests > save_requests_seen_;
  save_requests_seen_ = agreed.save_requests;
  if (!persist_owed_ && !due(options_.snapshot_every)) return absl::OkStatus();
  link_->EnterPhase(rank::kPhaseSnapshot, step, 0);
  bool ready = agreed.ready;
  if (!ready && must) {
    HF_ASSIGN_OR_RETURN(ready, WaitUntilReady());
    if (!ready) {
      return absl::AbortedError(absl::StrCat(
          "step ", step, ": no snapshot buffer became free within ", kSnapshotWaitMs / 1000,
          " s; is the node's agent writing to a slow or full store?"));
    }
  }
  if (!ready) {
    link_->CountSkippedSnapshot();
    return absl::OkStatus();
  }
  if (absl::Status status =
          link_->TakeSnapshot(views_, step, position_.samples, persist_owed_, stall_ns);
      !status.ok()) {
    return absl::IsFailedPrecondition(status) ? status : absl::AbortedError(status.message());
  }
  persist_owed_ = false;
  return absl::OkStatus();
}

// All ranks wait together: a buffer is filled on all or on none.
absl::StatusOr<bool> Trainer::WaitUntilReady() {
  const int64_t deadline_ns = clock_->MonoNs() + kSnapshotWaitMs * kNsPerMs;
  while (true) {
    std::array<double, 2> sums = {link_->SnapshotReady() ? 0.0 : 1.0,
                                  clock_->MonoNs() > deadline_ns ? 1.0 : 0.0};
    HF_RETURN_IF_ERROR(parallel::Guard("wait for a snapshot buffer", [&] {
      at::Tensor tensor = at::from_blob(sums.data(), {2}, at::kDouble);
      groups_.world->AllReduce(tensor, parallel::Reduce::kSum);
    }));
    if (sums[0] == 0) return true;
    if (sums[1] > 0) return false;
    poll(nullptr, 0,
         kSnapshotPollMs);  // the agent frees a buffer in shared memory, which wakes nobody
  }
}

}  // namespace holdfast::worker
