// SPDX-License-Identifier: Apache-2.0
// AdamW over flat buckets, the learning rate's schedule, and the gradient's norm. One thread.
#ifndef HOLDFAST_WORKER_OPTIMIZER_H_
#define HOLDFAST_WORKER_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "worker/config.h"
#include "worker/state.h"

namespace holdfast::worker {

// Linear warm-up to lr at warmup_steps, then half a cosine down to min_lr at the last step. `step`
// counts from 1. Pure.
double LearningRate(const OptimizerConfig& config, int64_t step, int64_t steps);

// Factor for the gradients: min(1, clip_norm / (norm + 1e-6)); 1 when clip_norm is 0.
double ClipFactor(double clip_norm, double norm);

// Sums of squares of this rank's gradients, in fp64 and in a fixed order: of what tp splits, and of
// what every tp rank holds.
struct SquareSums {
  double split = 0, replicated = 0;
};
SquareSums GradientSquares(const std::vector<FlatBucket>& buckets);

// One AdamW update (decoupled weight decay, bias correction by `step`) of every bucket, in order;
// the gradients are scaled by `factor` first.
void AdamWStep(const OptimizerConfig& config, double lr, int64_t step, double factor,
               std::vector<FlatBucket>& buckets);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_OPTIMIZER_H_
