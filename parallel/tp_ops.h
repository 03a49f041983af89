// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism as autograd functions (after Megatron): what one rank of a tensor-parallel
// group computes.
//   CopyToTp      identity | all-reduce       before a linear whose output rows are split (column
//   parallel) ReduceFromTp  all-reduce | identity       after a linear whose input columns are
//   split (row parallel) VocabEmbedding, VocabCrossEntropy         the vocabulary is split; no rank
//   ever holds all logits
// With a group of one rank each is its plain counterpart, by the same code.
//
// The group must outlive the backward pass. Throws CollectiveError. Only <ATen/core/Tensor.h> is
// needed to include this.
#ifndef HOLDFAST_PARALLEL_TP_OPS_H_
#define HOLDFAST_PARALLEL_TP_OPS_H_

#include <ATen/core/Tensor.h>

#include "parallel/collectives.h"

namespace holdfast::parallel {

at::Tensor CopyToTp(const at::Tensor& x, Group* tp);
at::Tensor ReduceFromTp(const at::Tensor& x, Group* tp);

// x [.., in] times weight [out / tp, in]: this rank's part of the output. Row: x [.., in / tp],
// weight [out, in / tp]: the whole.
at::Tensor ColumnLinear(const at::Tensor& x, const at::Tensor& weight, Group* tp);
at::Tensor RowLinear(const at::Tensor& x, const at::Tensor& weight, Group* tp);

// `tokens` i64 of any shape, `weight` [vocab / tp, dim] holding rows from index * vocab / tp.
// Returns [.., dim].
at::Tensor VocabEmbedding(const at::Tensor& tokens, const at::Tensor& weight, Group* tp);

// The sum over all tokens of the cross-entropy: `logits` [n, vocab / tp] f32, `targets` [n] i64 of
// the whole vocabulary.
at::Tensor VocabCrossEntropySum(const at::Tensor& logits, const at::Tensor& targets, Group* tp);

}  // namespace holdfast::parallel

#endif  // HOLDFAST_PARALLEL_TP_OPS_H_
