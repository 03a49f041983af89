// SPDX-License-Identifier: Apache-2.0
// The trainer's configuration: YAML in, checked values out. docs/train.md lists every field. An
// unknown or doubled field, a value out of range and a contradiction are errors that begin
// "file:line: section.field:".
#ifndef HOLDFAST_WORKER_CONFIG_H_
#define HOLDFAST_WORKER_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::worker {

struct ModelConfig {
  int64_t vocab = 0, dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn = 0, seq_len = 0;
  double rope_theta = 10'000, norm_eps = 1e-5;
  bool tied = false;  // the output head is the embedding
  int64_t head_dim() const { return dim / heads; }
};

struct DataConfig {
  std::string kind = "tokens";  // or "synthetic"
  std::string prefix;           // of .bin and .idx; relative to the configuration's directory
};

struct TrainConfig {
  int64_t steps = 0;
  int64_t seed = 0;
  int64_t micro_batch = 1;  // samples a rank and forward pass
  int64_t accumulate = 1;   // forward passes a step
  int64_t threads = 1;      // intra-operator; part of what the bits depend on
};

struct OptimizerConfig {
  double lr = 3e-4, min_lr = 0;
  int64_t warmup_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
};

struct ParallelConfig {
  int64_t dp = 0;  // 0: all ranks that tp leaves
  int64_t tp = 1;
  int64_t timeout_s = 120;  // of one collective; the node's agent notices a lost peer much sooner
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
};

// Parses and checks everything that does not depend on the number of ranks. `origin` is the file's
// name in errors and gives the directory of data.prefix.
absl::StatusOr<Config> ParseConfig(std::string_view yaml, const std::string& origin);
absl::StatusOr<Config> LoadConfig(const std::string& path);

// Fills in parallel.dp and checks dp x tp == ranks.
absl::Status ResolveRanks(Config* config, int64_t ranks);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_CONFIG_H_
