// SPDX-License-Identifier: Apache-2.0
// Operators against plain fp64 loops, and the optimizer against a loop of its own.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "parallel/tp_ops.h"
#include "worker/llama.h"
#include "worker/optimizer.h"
#include "worker/philox.h"

namespace holdfast::worker {
namespace {

at::Tensor Normal(at::IntArrayRef shape, uint64_t key) {
  at::Tensor out = at::empty(shape);
  NormalStream stream(PhiloxKey(key, "test"));
  for (int64_t i = 0; i < out.numel(); ++i) out.data_ptr<float>()[i] = stream.At(i);
  return out;
}

double WorstDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Rope, EqualsRotationInFp64AndItsGradientTurnsBack) {
  const int64_t seq = 7, width = 6;
  at::Tensor x = Normal({2, seq, 3, width}, 1);
  at::Tensor expected = at::empty({2, seq, 3, width}, at::kDouble);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < seq; ++t) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t i = 0; i < width / 2; ++i) {
          const double angle = t / std::pow(500.0, 2.0 * i / width);
          const double p = x[b][t][h][i].item<float>(), q = x[b][t][h][i + width / 2].item<float>();
          expected[b][t][h][i] = p * std::cos(angle) - q * std::sin(angle);
          expected[b][t][h][i + width / 2] = q * std::cos(angle) + p * std::sin(angle);
        }
      }
    }
  }
  const RotaryTable table = MakeRotaryTable(seq, width, 500);
  x.set_requires_grad(true);
  const at::Tensor y = Rotate(x, table);
  EXPECT_LT(WorstDifference(y.detach(), expected), 1e-6);
  y.backward(y.detach());
  EXPECT_LT(WorstDifference(x.grad(), x.detach()), 1e-6);  // a rotation's transpose is its inverse
}

TEST(RmsNorm, EqualsTheFormulaInFp64) {
  const at::Tensor x = Normal({5, 12}, 2), weight = Normal({12}, 3);
  const at::Tensor got = at::rms_norm(x, {12}, weight, 1e-5);
  for (int64_t r = 0; r < 5; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < 12; ++i)
      squares += std::pow(static_cast<double>(x[r][i].item<float>()), 2);
    const double scale = 1 / std::sqrt(squares / 12 + 1e-5);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(got[r][i].item<float>(), x[r][i].item<float>() * scale * weight[i].item<float>(),
                  1e-6);
    }
  }
}

TEST(CrossEntropy, EqualsTheFormulaInFp64WithItsGradient) {
  const auto solo = parallel::SoloGroup();
  at::Tensor logits = Normal({6, 10}, 4).mul(5);
  const at::Tensor targets = at::arange(6, at::kLong).mul(3).remainder(10);
  logits.set_requires_grad(true);
  const at::Tensor loss = parallel::VocabCrossEntropySum(logits, targets, solo.get());
  loss.backward(at::full({}, 0.5f));
  double expected = 0;
  for (int64_t r = 0; r < 6; ++r) {
    double sum = 0;
    const int64_t target = targets[r].item<int64_t>();
    for (int64_t c = 0; c < 10; ++c)
      sum += std::exp(static_cast<double>(logits[r][c].item<float>()));
    expected += std::log(sum) - logits[r][target].item<float>();
    for (int64_t c = 0; c < 10; ++c) {
      const double p = std::exp(static_cast<double>(logits[r][c].item<float>())) / sum;
      EXPECT_NEAR(logits.grad()[r][c].item<float>(), 0.5 * (p - (c == target)), 1e-6);
    }
  }
  EXPECT_NEAR(loss.item<float>() / expected, 1.0, 1e-6);
}

ModelConfig Tiny() {
  return {.vocab = 8, .dim = 8, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 12, .seq_len = 4};
}

TEST(AdamW, EqualsTheFormulaOverThreeSteps) {
  const auto mesh = parallel::Mesh::Create(1, 1, 0, 1);
  TrainState state(Tiny(), *mesh);
  state.Initialise(1);
  const OptimizerConfig config{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
  std::vector<std::vector<double>> p, m, v;
  for (FlatBucket& bucket : state.buckets()) {
    const float* values = bucket.param.data_ptr<float>();
    p.emplace_back(values, values + bucket.plan.elements);
    m.emplace_back(bucket.plan.elements, 0.0);
    v.emplace_back(bucket.plan.elements, 0.0);
  }
  for (int64_t step = 1; step <= 3; ++step) {
    const double lr = 0.01 * step, factor = 0.5;
    for (size_t b = 0; b < p.size(); ++b) {
      FlatBucket& bucket = state.buckets()[b];
      bucket.grad.copy_(Normal({bucket.plan.elements}, 100 * step + b));
      for (int64_t i = 0; i < bucket.plan.elements; ++i) {
        const double g = bucket.grad.data_ptr<float>()[i] * factor;
        if (i < bucket.plan.decayed) p[b][i] *= 1 - lr * config.weight_decay;
        m[b][i] = config.beta1 * m[b][i] + (1 - config.beta1) * g;
        v[b][i] = config.beta2 * v[b][i] + (1 - config.beta2) * g * g;
        const double mean = m[b][i] / (1 - std::pow(config.beta1, step)),
                     square = v[b][i] / (1 - std::pow(config.beta2, step));
        p[b][i] -= lr * mean / (std::sqrt(square) + config.eps);
      }
    }
    AdamWStep(config, lr, step, factor, state.buckets());
  }
  for (size_t b = 0; b < p.size(); ++b) {
    for (size_t i = 0; i < p[b].size(); ++i)
      EXPECT_NEAR(state.buckets()[b].param.data_ptr<float>()[i], p[b][i], 2e-6) << b << " " << i;
  }
}

TEST(AdamW, NormWeightsAreNotDecayed) {
  const auto mesh = parallel::Mesh::Create(1, 1, 0, 1);
  TrainState state(Tiny(), *mesh);
  state.Initialise(1);
  const float before = state.buckets()[0].param.data_ptr<float>()[0];
  AdamWStep({.weight_decay = 0.5}, /*lr=*/0.1, 1, 1.0, state.buckets());  // all gradients are zero
  EXPECT_EQ(state.leaf("norm").sum().item<float>(), 8.0f);
  EXPECT_NEAR(state.buckets()[0].param.data_ptr<float>()[0], before * 0.95f, 1e-7);
}

TEST(Schedule, WarmsUpThenFollowsACosineToTheMinimum) {
  const OptimizerConfig config{.lr = 1.0, .min_lr = 0.2, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(LearningRate(config, 1, 12), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(config, 4, 12), 1.0);
  EXPECT_NEAR(LearningRate(config, 8, 12), 0.6, 1e-12);
  EXPECT_NEAR(LearningRate(config, 12, 12), 0.2, 1e-12);
}

TEST(Clip, ScalesOnlyWhatIsTooLong) {
  EXPECT_EQ(ClipFactor(1.0, 0.5), 1.0);
  EXPECT_EQ(ClipFactor(0, 50), 1.0);
  EXPECT_NEAR(ClipFactor(1.0, 4.0), 0.25, 1e-6);
}

TEST(State, StartsFromTheSameGlobalTensorsInEveryLayout) {
  const auto whole_mesh = parallel::Mesh::Create(1, 1, 0, 1);
  TrainState whole(Tiny(), *whole_mesh);
  whole.Initialise(5);
  ModelConfig model = Tiny();
  model.kv_heads = 2;
  TrainState both(model, *whole_mesh);
  both.Initialise(5);
  const auto second = parallel::Mesh::Create(1, 2, 1, 2);
  TrainState shard(model, *second);
  shard.Initialise(5);
  EXPECT_TRUE(
      at::equal(shard.leaf("embed").detach(), whole.leaf("embed").detach().narrow(0, 4, 4)));
  EXPECT_TRUE(at::equal(shard.leaf("layers.0.ffn.w2").detach(),
                        whole.leaf("layers.0.ffn.w2").detach().narrow(1, 6, 6)));
  EXPECT_TRUE(at::equal(shard.leaf("layers.0.attn.wqkv").detach().narrow(0, 4, 4),
                        both.leaf("layers.0.attn.wqkv").detach().narrow(0, 12, 4)));
}

}  // namespace
}  // namespace holdfast::worker
