// SPDX-License-Identifier: Apache-2.0
#include "worker/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace holdfast::worker {
namespace {

// Eight running sums: a fixed order that the compiler can keep in vector registers.
double SumOfSquares(const float* values, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double x = values[i + lane];
      sums[lane] += x * x;
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void Update(const OptimizerConfig& config, double lr, const at::Tensor& step, double decay,
            FlatBucket& bucket, int64_t first, int64_t count) {
  if (count == 0) return;
  const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, first, count); };
  at::_fused_adamw_({part(bucket.param)}, {part(bucket.grad)}, {part(bucket.exp_avg)},
                    {part(bucket.exp_avg_sq)}, {}, {step}, lr, config.beta1, config.beta2, decay,
                    config.eps, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

double LearningRate(const OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step <= config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  const int64_t span = std::max<int64_t>(1, steps - config.warmup_steps);
  const double done =
      std::min(1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(span));
  return config.min_lr +
         (config.lr - config.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double ClipFactor(double clip_norm, double norm) {
  return clip_norm == 0 ? 1.0 : std::min(1.0, clip_norm / (norm + 1e-6));
}

SquareSums GradientSquares(const std::vector<FlatBucket>& buckets) {
  SquareSums sums;
  for (const FlatBucket& bucket : buckets) {
    const float* grad = bucket.grad.data_ptr<float>();
    for (const Leaf& leaf : bucket.plan.leaves) {
      (leaf.split ? sums.split : sums.replicated) +=
          SumOfSquares(grad + leaf.offset, leaf.elements());
    }
  }
  return sums;
}

void AdamWStep(const OptimizerConfig& config, double lr, int64_t step, double factor,
               std::vector<FlatBucket>& buckets) {
  const c10::NoGradGuard no_grad;
  const at::Tensor count = at::full({}, static_cast<float>(step));
  for (FlatBucket& bucket : buckets) {
    if (factor != 1.0) bucket.grad.mul_(factor);
    Update(config, lr, count, config.weight_decay, bucket, 0, bucket.plan.decayed);
    Update(config, lr, count, 0, bucket, bucket.plan.decayed,
           bucket.plan.elements - bucket.plan.decayed);
  }
}

}  // namespace holdfast::worker
