// SPDX-License-Identifier: Apache-2.0
#include "parallel/tp_ops.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace holdfast::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The group travels as an integer: IValues hold no raw pointers.
int64_t Handle(Group* group) { return reinterpret_cast<int64_t>(group); }
Group* FromHandle(const AutogradContext* ctx) {
  return reinterpret_cast<Group*>(ctx->saved_data.find("tp")->second.toInt());
}

struct CopyToTpFunction : torch::autograd::Function<CopyToTpFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& x, int64_t tp) {
    ctx->saved_data["tp"] = tp;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::Tensor grad = grads[0].contiguous();
    if (grad.is_same(grads[0])) grad = grad.clone();  // others may still read it
    FromHandle(ctx)->AllReduce(grad, Reduce::kSum);
    return {grad, Variable()};
  }
};

struct ReduceFromTpFunction : torch::autograd::Function<ReduceFromTpFunction> {
  static Variable forward(AutogradContext*, const Variable& x, int64_t tp) {
    at::Tensor sum = x.contiguous();
    if (sum.is_same(x)) sum = sum.clone();
    reinterpret_cast<Group*>(tp)->AllReduce(sum, Reduce::kSum);
    return sum;
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0], Variable()};
  }
};

// Sum over tokens of log(sum exp) - logit of the target, with three small all-reduces. `exp` is
// kept for the backward pass and turned into the gradient in place.
struct VocabCrossEntropyFunction : torch::autograd::Function<VocabCrossEntropyFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& logits, const Variable& targets,
                          int64_t tp) {
    Group* group = reinterpret_cast<Group*>(tp);
    const int64_t rows = logits.size(1), first = rows * group->index();
    at::Tensor peak = std::get<0>(logits.max(1, /*keepdim=*/true)).contiguous();
    group->AllReduce(peak, Reduce::kMax);
    at::Tensor shifted = logits - peak;
    at::Tensor local = targets - first;
    at::Tensor mine = local.ge(0).logical_and_(local.lt(rows));
    at::Tensor index = local.clamp(0, rows - 1).unsqueeze(1);
    at::Tensor wanted = shifted.gather(1, index).squeeze(1).mul_(mine).contiguous();
    group->AllReduce(wanted, Reduce::kSum);
    at::Tensor exp = shifted.exp_();
    at::Tensor sum = exp.sum(1).contiguous();
    group->AllReduce(sum, Reduce::kSum);
    at::Tensor loss = (sum.log() - wanted).sum();
    exp.div_(sum.unsqueeze(1));
    ctx->saved_data["exp"] = exp;
    ctx->saved_data["index"] = index;
    ctx->saved_data["mine"] = mine;
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::Tensor grad = ctx->saved_data["exp"].toTensor();
    const at::Tensor mine =
        ctx->saved_data["mine"].toTensor().to(grad.scalar_type()).neg_().unsqueeze(1);
    grad.scatter_add_(1, ctx->saved_data["index"].toTensor(), mine);
    grad.mul_(grads[0]);
    ctx->saved_data
        .clear();  // the buffer is the gradient now: a second backward pass would read it
    return {grad, Variable(), Variable()};
  }
};

}  // namespace

at::Tensor CopyToTp(const at::Tensor& x, Group* tp) {
  return tp->size() == 1 ? x : CopyToTpFunction::apply(x, Handle(tp));
}

at::Tensor ReduceFromTp(const at::Tensor& x, Group* tp) {
  return tp->size() == 1 ? x : ReduceFromTpFunction::apply(x, Handle(tp));
}

at::Tensor ColumnLinear(const at::Tensor& x, const at::Tensor& weight, Group* tp) {
  return at::linear(CopyToTp(x, tp), weight);
}

at::Tensor RowLinear(const at::Tensor& x, const at::Tensor& weight, Group* tp) {
  return ReduceFromTp(at::linear(x, weight), tp);
}

at::Tensor VocabEmbedding(const at::Tensor& tokens, const at::Tensor& weight, Group* tp) {
  if (tp->size() == 1) return at::embedding(weight, tokens);
  const int64_t rows = weight.size(0);
  const at::Tensor local = tokens - rows * tp->index();
  const at::Tensor mine = local.ge(0).logical_and_(local.lt(rows));
  const at::Tensor found = at::embedding(weight, local.clamp(0, rows - 1));
  return ReduceFromTp(found * mine.unsqueeze(-1).to(found.scalar_type()), tp);
}

at::Tensor VocabCrossEntropySum(const at::Tensor& logits, const at::Tensor& targets, Group* tp) {
  return VocabCrossEntropyFunction::apply(logits, targets, Handle(tp));
}

}  // namespace holdfast::parallel
