// SPDX-License-Identifier: Apache-2.0
// A Llama: pre-norm blocks of RMSNorm, rotary grouped-query attention and SwiGLU, tensor parallel
// over one group. fp32. The state and the group must outlive the model. Throws (LibTorch,
// CollectiveError): call it inside parallel::Guard. One thread.
#ifndef HOLDFAST_WORKER_LLAMA_H_
#define HOLDFAST_WORKER_LLAMA_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "parallel/collectives.h"
#include "worker/config.h"
#include "worker/state.h"

namespace holdfast::worker {

// cos and sin of the rotation angles, [seq_len, 1, head_dim / 2]; computed in fp64, kept in fp32.
struct RotaryTable {
  at::Tensor cos, sin;
};
RotaryTable MakeRotaryTable(int64_t seq_len, int64_t head_dim, double theta);

// Rotates x [batch, seq, heads, head_dim]: element i of the first half pairs with element i of the
// second (as HF's Llama).
at::Tensor Rotate(const at::Tensor& x, const RotaryTable& table);

class Llama {
 public:
  Llama(const ModelConfig& model, const TrainState* state, parallel::Group* tp);

  // The sum over all tokens of the cross-entropy of predicting tokens[:, 1:] from tokens[:, :-1];
  // `tokens` i64 [batch, seq_len + 1].
  at::Tensor LossSum(const at::Tensor& tokens) const;

 private:
  struct Block {
    at::Tensor attn_norm, wqkv, wo, ffn_norm, w13, w2;
  };
  at::Tensor Attention(const at::Tensor& x, const Block& block) const;
  at::Tensor FeedForward(const at::Tensor& x, const Block& block) const;
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;

  ModelConfig model_;
  parallel::Group* tp_;
  RotaryTable rotary_;
  at::Tensor embed_, norm_, head_;
  std::vector<Block> blocks_;
};

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_LLAMA_H_
