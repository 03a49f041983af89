// SPDX-License-Identifier: Apache-2.0
#include "worker/layout.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace holdfast::worker {
namespace {

constexpr double kInitStd = 0.02;

struct Split {
  int64_t tp, index;
};

// A [rows, cols] tensor of which this rank holds a block of rows.
Part RowsPart(const std::string& name, int64_t rows, int64_t cols, double std, Split s) {
  const uint64_t mine = rows / s.tp, width = cols;
  return {name, {static_cast<uint64_t>(rows), width}, {mine * s.index, 0}, {mine, width}, std};
}

Part ColsPart(const std::string& name, int64_t rows, int64_t cols, double std, Split s) {
  const uint64_t mine = cols / s.tp, height = rows;
  return {name, {height, static_cast<uint64_t>(cols)}, {0, mine * s.index}, {height, mine}, std};
}

Leaf Matrix(const std::string& name, std::vector<Part> parts) {
  Leaf leaf{.name = name, .decay = true, .split = true, .parts = std::move(parts)};
  leaf.cols = leaf.parts[0].box_size[1];
  for (const Part& part : leaf.parts) leaf.rows += part.box_size[0];
  return leaf;
}

Leaf Norm(const std::string& name, int64_t dim) {
  const uint64_t n = dim;
  return {.name = name, .rows = dim, .parts = {Part{name, {n}, {0}, {n}, 0}}};
}

Bucket Finish(std::string name, std::vector<Leaf> leaves) {
  Bucket bucket{.name = std::move(name), .leaves = std::move(leaves)};
  for (Leaf& leaf : bucket.leaves) {
    leaf.offset = bucket.elements;
    bucket.elements += leaf.elements();
    if (leaf.decay) bucket.decayed += leaf.elements();
  }
  return bucket;
}

Bucket Layer(const ModelConfig& m, int64_t layer, Split s) {
  const std::string p = absl::StrCat("layers.", layer, ".");
  const int64_t q = m.heads * m.head_dim(), kv = m.kv_heads * m.head_dim();
  const double out_std =
      kInitStd / std::sqrt(2.0 * m.layers);  // keeps the residual stream's variance with depth
  return Finish(absl::StrCat("layers.", layer),
                {Matrix(p + "attn.wqkv", {RowsPart(p + "attn.wq", q, m.dim, kInitStd, s),
                                          RowsPart(p + "attn.wk", kv, m.dim, kInitStd, s),
                                          RowsPart(p + "attn.wv", kv, m.dim, kInitStd, s)}),
                 Matrix(p + "attn.wo", {ColsPart(p + "attn.wo", m.dim, q, out_std, s)}),
                 Matrix(p + "ffn.w13", {RowsPart(p + "ffn.gate", m.ffn, m.dim, kInitStd, s),
                                        RowsPart(p + "ffn.up", m.ffn, m.dim, kInitStd, s)}),
                 Matrix(p + "ffn.w2", {ColsPart(p + "ffn.down", m.dim, m.ffn, out_std, s)}),
                 Norm(p + "attn_norm", m.dim), Norm(p + "ffn_norm", m.dim)});
}

}  // namespace

int64_t Part::elements() const {
  int64_t n = 1;
  for (const uint64_t size : box_size) n *= static_cast<int64_t>(size);
  return n;
}

std::vector<Bucket> BuildLayout(const ModelConfig& model, int64_t tp, int64_t tp_index) {
  const Split s{tp, tp_index};
  std::vector<Bucket> buckets;
  buckets.push_back(
      Finish("embed", {Matrix("embed", {RowsPart("embed", model.vocab, model.dim, kInitStd, s)})}));
  for (int64_t layer = 0; layer < model.layers; ++layer) buckets.push_back(Layer(model, layer, s));
  std::vector<Leaf> last;
  if (!model.tied)
    last.push_back(Matrix("head", {RowsPart("head", model.vocab, model.dim, kInitStd, s)}));
  last.push_back(Norm("norm", model.dim));
  buckets.push_back(Finish("final", std::move(last)));
  return buckets;
}

}  // namespace holdfast::worker
