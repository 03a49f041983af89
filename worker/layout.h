// SPDX-License-Identifier: Apache-2.0
// Which parameters a rank holds and in what order: buckets (the order of gradients' reduction, of
// the optimizer and of the arena), in each bucket leaves (what the model multiplies with), in each
// leaf the named global tensors whose rows it stacks. Pure.
//
// Fused leaves: queries, keys and values are one matrix, gate and up projections another, so that
// each is one multiplication. Their rows belong to global tensors of their own names: a checkpoint
// knows nothing of the fusion or of the layout.
#ifndef HOLDFAST_WORKER_LAYOUT_H_
#define HOLDFAST_WORKER_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/config.h"

namespace holdfast::worker {

// One rank's box of one global tensor.
struct Part {
  std::string name;
  std::vector<uint64_t> global_shape, box_offset, box_size;
  double init_std = 0;  // 0: ones
  int64_t elements() const;
};

struct Leaf {
  std::string name;
  int64_t rows = 0, cols = 0;  // cols 0: a vector of `rows` elements
  bool decay = false;          // weight decay: matrices yes, norms no
  bool split = false;          // split over tp; else every tp rank holds the same
  int64_t offset = 0;          // elements, from the start of the bucket
  std::vector<Part> parts;     // row blocks, in order
  int64_t elements() const { return cols == 0 ? rows : rows * cols; }
};

struct Bucket {
  std::string name;
  std::vector<Leaf> leaves;  // those with decay first
  int64_t elements = 0;
  int64_t decayed = 0;  // elements of the leading leaves with decay
};

// The model must have passed ParseConfig.
std::vector<Bucket> BuildLayout(const ModelConfig& model, int64_t tp, int64_t tp_index);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_LAYOUT_H_
