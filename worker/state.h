// SPDX-License-Identifier: Apache-2.0
// The training state of one rank: for each bucket one flat tensor of parameters, gradients and both
// AdamW moments (fp32). The leaves the model uses are views of the parameters; their .grad are
// views of the gradients, so that backward passes add up in place. One thread.
#ifndef HOLDFAST_WORKER_STATE_H_
#define HOLDFAST_WORKER_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/client/snapshot.h"
#include "parallel/mesh.h"
#include "worker/layout.h"

namespace holdfast::worker {

struct FlatBucket {
  Bucket plan;
  at::Tensor param, grad, exp_avg, exp_avg_sq;
};

class TrainState {
 public:
  TrainState(const ModelConfig& model, const parallel::Mesh& mesh);

  std::vector<FlatBucket>& buckets() { return buckets_; }
  const at::Tensor& leaf(const std::string& name) const { return leaves_.at(name); }

  // Sets parameters as a function of (seed, name, global element) and moments to zero.
  void Initialise(uint64_t seed);
  void ZeroGradients();

  // All parameters and moments as boxes of global tensors, pointing into this state:
  // "param.<name>", "exp_avg.<name>", "exp_avg_sq.<name>", bucket by bucket. Replica 0 is written
  // to the store: it is held by dp coordinate 0 (and, for what tp does not split, tp coordinate 0).
  std::vector<ckpt::TensorView> Views() const;

 private:
  parallel::Mesh mesh_;
  std::vector<FlatBucket> buckets_;
  std::map<std::string, at::Tensor> leaves_;
};

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_STATE_H_
