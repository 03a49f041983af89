// SPDX-License-Identifier: Apache-2.0
#include "worker/llama.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "parallel/tp_ops.h"

namespace holdfast::worker {
namespace {

at::Tensor RotateBy(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  at::Tensor out = at::empty(x.sizes(), x.options());
  at::Tensor first = out.narrow(-1, 0, half), second = out.narrow(-1, half, half);
  const double sign = back ? -1 : 1;  // the transpose of a rotation turns the other way
  at::mul_out(first, a, cos).addcmul_(b, sin, -sign);
  at::mul_out(second, b, cos).addcmul_(a, sin, sign);
  return out;
}

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin) {
    ctx->saved_data["cos"] = cos;
    ctx->saved_data["sin"] = sin;
    return RotateBy(x, cos, sin, /*back=*/false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {RotateBy(grads[0], ctx->saved_data["cos"].toTensor(), ctx->saved_data["sin"].toTensor(),
                     /*back=*/true),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RotaryTable MakeRotaryTable(int64_t seq_len, int64_t head_dim, double theta) {
  const int64_t half = head_dim / 2;
  RotaryTable table{at::empty({seq_len, 1, half}), at::empty({seq_len, 1, half})};
  float* cos = table.cos.data_ptr<float>();
  float* sin = table.sin.data_ptr<float>();
  for (int64_t t = 0; t < seq_len; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = t * std::pow(theta, -2.0 * i / head_dim);
      *cos++ = static_cast<float>(std::cos(angle));
      *sin++ = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

at::Tensor Rotate(const at::Tensor& x, const RotaryTable& table) {
  return RotateFunction::apply(x, table.cos, table.sin);
}

Llama::Llama(const ModelConfig& model, const TrainState* state, parallel::Group* tp)
    : model_(model),
      tp_(tp),
      rotary_(MakeRotaryTable(model.seq_len, model.head_dim(), model.rope_theta)),
      embed_(state->leaf("embed")),
      norm_(state->leaf("norm")),
      head_(state->leaf(model.tied ? "embed" : "head")) {
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string p = absl::StrCat("layers.", layer, ".");
    blocks_.push_back({state->leaf(p + "attn_norm"), state->leaf(p + "attn.wqkv"),
                       state->leaf(p + "attn.wo"), state->leaf(p + "ffn_norm"),
                       state->leaf(p + "ffn.w13"), state->leaf(p + "ffn.w2")});
  }
}

at::Tensor Llama::Norm(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {model_.dim}, weight, model_.norm_eps);
}

at::Tensor Llama::Attention(const at::Tensor& x, const Block& block) const {
  const int64_t batch = x.size(0), seq = x.size(1), width = model_.head_dim();
  const int64_t heads = model_.heads / tp_->size(), kv = model_.kv_heads / tp_->size();
  const at::Tensor qkv = parallel::ColumnLinear(Norm(x, block.attn_norm), block.wqkv, tp_)
                             .view({batch, seq, heads + 2 * kv, width});
  const at::Tensor turned = Rotate(qkv.narrow(2, 0, heads + kv), rotary_);
  const at::Tensor q = turned.narrow(2, 0, heads).transpose(1, 2),
                   k = turned.narrow(2, heads, kv).transpose(1, 2);
  const at::Tensor v = qkv.narrow(2, heads + kv, kv).transpose(1, 2);
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
      /*scale=*/std::nullopt, /*enable_gqa=*/heads != kv);
  return parallel::RowLinear(mixed.transpose(1, 2).reshape({batch, seq, heads * width}), block.wo,
                             tp_);
}

at::Tensor Llama::FeedForward(const at::Tensor& x, const Block& block) const {
  const at::Tensor both = parallel::ColumnLinear(Norm(x, block.ffn_norm), block.w13, tp_);
  const int64_t width = both.size(-1) / 2;
  return parallel::RowLinear(at::silu(both.narrow(-1, 0, width)) * both.narrow(-1, width, width),
                             block.w2, tp_);
}

at::Tensor Llama::LossSum(const at::Tensor& tokens) const {
  const int64_t seq = tokens.size(1) - 1;
  at::Tensor x = parallel::VocabEmbedding(tokens.narrow(1, 0, seq), embed_, tp_);
  for (const Block& block : blocks_) {
    x = x + Attention(x, block);
    x = x + FeedForward(x, block);
  }
  const at::Tensor logits = parallel::ColumnLinear(Norm(x, norm_), head_, tp_);
  return parallel::VocabCrossEntropySum(logits.view({-1, logits.size(-1)}),
                                        tokens.narrow(1, 1, seq).reshape({-1}), tp_);
}

}  // namespace holdfast::worker
