// SPDX-License-Identifier: Apache-2.0
#include "worker/config.h"

#include <gtest/gtest.h>

#include <string>

#include "worker/layout.h"

namespace holdfast::worker {
namespace {

constexpr char kGood[] = R"(model:
  vocab: 512
  dim: 64
  layers: 2
  heads: 8
  kv_heads: 4
  ffn: 96
  seq_len: 32
data:
  prefix: corpus
train:
  steps: 10
parallel:
  tp: 2
)";

std::string With(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Config, ReadsFieldsAndDefaults) {
  const auto config = ParseConfig(kGood, "dir/train.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.vocab, 512);
  EXPECT_EQ(config->model.head_dim(), 8);
  EXPECT_EQ(config->data.kind, "tokens");
  EXPECT_EQ(config->data.prefix, "dir/corpus");  // beside the configuration
  EXPECT_EQ(config->train.threads, 1);
  EXPECT_EQ(config->optimizer.clip_norm, 1.0);
  EXPECT_EQ(ParseConfig(With("corpus", "/abs/corpus"), "dir/train.yaml")->data.prefix,
            "/abs/corpus");
  EXPECT_EQ(ParseConfig(With("  kv_heads: 4\n", ""), "t.yaml")->model.kv_heads, 8);  // no grouping
}

struct Bad {
  const char* name;
  std::string yaml;
  const char* says;
};

TEST(Config, EveryBadInputIsOneErrorThatNamesFileFieldAndValue) {
  const Bad cases[] = {
      {"unknown field", With("heads: 8", "haeds: 8"),
       "c.yaml:5: model.haeds: unknown field; the nearest known one is model.heads"},
      {"unknown section", With("train:", "trian:"),
       "trian: unknown field; the nearest known one is train"},
      {"doubled field", With("  dim: 64", "  dim: 64\n  dim: 32"),
       "c.yaml:4: model.dim: is given twice"},
      {"missing field", With("  layers: 2\n", ""), "model.layers: is missing"},
      {"missing section", With("train:\n  steps: 10\n", ""), "train.steps: is missing"},
      {"negative", With("layers: 2", "layers: -2"),
       "c.yaml:4: model.layers: -2 is not a whole number from 1"},
      {"fraction", With("steps: 10", "steps: 1.5"), "train.steps: 1.5 is not a whole number"},
      {"text", With("dim: 64", "dim: many"), "model.dim: many is not a whole number"},
      {"list", With("dim: 64", "dim: [64]"), "model.dim: must be a single value"},
      {"section is a value", With("parallel:\n  tp: 2\n", "parallel: 2\n"),
       "parallel: must hold fields"},
      {"not yaml", With("data:", "data: ["), "not valid YAML"},
      {"empty", "", "must hold the sections"},
      {"infinite", With("train:", "optimizer: {lr: inf}\ntrain:"),
       "optimizer.lr: inf is not a number"},
      {"boolean", With("  dim: 64", "  dim: 64\n  tied: yes"),
       "model.tied: yes is neither true nor false"},
      {"heads do not divide dim", With("heads: 8", "heads: 7"),
       "model.dim: 64 is not a multiple of model.heads, 7"},
      {"odd head", With("dim: 64", "dim: 72"), "must be even"},
      {"kv heads", With("kv_heads: 4", "kv_heads: 3"),
       "model.kv_heads: 3 does not divide model.heads, 8"},
      {"tp and heads", With("tp: 2", "tp: 3"), "parallel.tp: 3 does not divide model.heads, 8"},
      {"tp and kv heads", With("tp: 2", "tp: 8"),
       "parallel.tp: 8 does not divide model.kv_heads, 4"},
      {"tp and ffn", With("ffn: 96", "ffn: 97"), "parallel.tp: 2 does not divide model.ffn, 97"},
      {"tp and vocab", With("vocab: 512", "vocab: 511"),
       "parallel.tp: 2 does not divide model.vocab, 511"},
      {"warm-up", With("train:", "optimizer: {warmup_steps: 11}\ntrain:"),
       "optimizer.warmup_steps: 11 is more than train.steps, 10"},
      {"minimum rate", With("train:", "optimizer: {lr: 0.1, min_lr: 0.2}\ntrain:"),
       "optimizer.min_lr: 0.2 is more than optimizer.lr, 0.1"},
      {"data kind", With("prefix: corpus", "kind: parquet"), "data.kind: parquet"},
      {"no prefix", With("  prefix: corpus", "  kind: tokens"), "data.prefix: is missing"},
      {"synthetic with a file", With("prefix: corpus", "prefix: corpus\n  kind: synthetic"),
       "synthetic data reads no file"},
  };
  for (const Bad& bad : cases) {
    const absl::Status status = ParseConfig(bad.yaml, "c.yaml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.name << ": " << status;
    EXPECT_NE(status.message().find(bad.says), absl::string_view::npos)
        << bad.name << ": " << status;
    EXPECT_NE(status.message().find("c.yaml"), absl::string_view::npos)
        << bad.name << ": " << status;
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos)
        << bad.name << ": more than one line";
  }
}

TEST(Config, RanksMustBeDpTimesTp) {
  auto config = ParseConfig(kGood, "c.yaml");
  ASSERT_TRUE(ResolveRanks(&*config, 6).ok());
  EXPECT_EQ(config->parallel.dp, 3);
  const absl::Status wrong = ResolveRanks(&*config, 4);
  EXPECT_NE(wrong.message().find("dp 3 x tp 2 does not make the 4 ranks"), absl::string_view::npos)
      << wrong;
  auto odd = ParseConfig(kGood, "c.yaml");
  EXPECT_FALSE(ResolveRanks(&*odd, 3).ok());
}

TEST(Config, AMissingFileIsNamed) {
  const absl::Status status = LoadConfig("/no/such/train.yaml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/no/such/train.yaml"), absl::string_view::npos);
}

TEST(Layout, TheBoxesOfAllTensorParallelRanksCoverEveryTensorOnce) {
  const ModelConfig model = ParseConfig(kGood, "c.yaml")->model;
  int64_t whole = 0, split = 0, repeated = 0;
  for (const Bucket& bucket : BuildLayout(model, 1, 0)) whole += bucket.elements;
  for (int64_t index = 0; index < 2; ++index) {
    for (const Bucket& bucket : BuildLayout(model, 2, index)) {
      int64_t sum = 0;
      bool decay_ended = false;
      for (const Leaf& leaf : bucket.leaves) {
        EXPECT_EQ(leaf.offset, sum);
        int64_t parts = 0;
        for (const Part& part : leaf.parts) parts += part.elements();
        EXPECT_EQ(parts, leaf.elements()) << leaf.name;
        EXPECT_FALSE(leaf.decay && decay_ended) << leaf.name;  // those with decay come first
        decay_ended |= !leaf.decay;
        sum += leaf.elements();
        (leaf.split ? split : repeated) += leaf.elements();
      }
      EXPECT_EQ(sum, bucket.elements);
    }
  }
  EXPECT_EQ(split + repeated / 2, whole);
  EXPECT_GT(repeated, 0);
}

}  // namespace
}  // namespace holdfast::worker
