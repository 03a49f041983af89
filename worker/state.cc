// SPDX-License-Identifier: Apache-2.0
#include "worker/state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "worker/philox.h"

namespace holdfast::worker {
namespace {

void InitialisePart(const Part& part, uint64_t seed, float* out) {
  if (part.init_std == 0) {
    std::fill_n(out, part.elements(), 1.0f);
    return;
  }
  NormalStream normal(PhiloxKey(seed, part.name));
  const uint64_t rows = part.box_size[0], cols = part.box_size[1], width = part.global_shape[1];
  for (uint64_t r = 0; r < rows; ++r) {
    const uint64_t first = (part.box_offset[0] + r) * width + part.box_offset[1];
    for (uint64_t c = 0; c < cols; ++c)
      *out++ = static_cast<float>(part.init_std) * normal.At(first + c);
  }
}

}  // namespace

TrainState::TrainState(const ModelConfig& model, const parallel::Mesh& mesh) : mesh_(mesh) {
  for (Bucket& plan : BuildLayout(model, mesh.tp(), mesh.tp_index())) {
    const int64_t n = plan.elements;
    FlatBucket bucket{std::move(plan), at::zeros({n}), at::zeros({n}), at::zeros({n}),
                      at::zeros({n})};
    for (const Leaf& leaf : bucket.plan.leaves) {
      const auto view = [&](const at::Tensor& flat) {
        const at::Tensor part = flat.narrow(0, leaf.offset, leaf.elements());
        return leaf.cols == 0 ? part.detach() : part.view({leaf.rows, leaf.cols}).detach();
      };
      at::Tensor value = view(bucket.param);
      value.set_requires_grad(true);
      value.mutable_grad() = view(bucket.grad);
      leaves_.emplace(leaf.name, std::move(value));
    }
    buckets_.push_back(std::move(bucket));
  }
}

void TrainState::Initialise(uint64_t seed) {
  for (FlatBucket& bucket : buckets_) {
    for (const Leaf& leaf : bucket.plan.leaves) {
      float* out = bucket.param.data_ptr<float>() + leaf.offset;
      for (const Part& part : leaf.parts) {
        InitialisePart(part, seed, out);
        out += part.elements();
      }
    }
    bucket.exp_avg.zero_();
    bucket.exp_avg_sq.zero_();
  }
}

void TrainState::ZeroGradients() {
  for (FlatBucket& bucket : buckets_) bucket.grad.zero_();
}

std::vector<ckpt::TensorView> TrainState::Views() const {
  std::vector<ckpt::TensorView> views;
  for (const FlatBucket& bucket : buckets_) {
    const std::pair<const char*, const at::Tensor*> kinds[] = {{"param.", &bucket.param},
                                                               {"exp_avg.", &bucket.exp_avg},
                                                               {"exp_avg_sq.", &bucket.exp_avg_sq}};
    for (const auto& [prefix, flat] : kinds) {
      for (const Leaf& leaf : bucket.plan.leaves) {
        const int replica = leaf.split ? mesh_.dp_index() : mesh_.rank();
        float* data = flat->data_ptr<float>() + leaf.offset;
        for (const Part& part : leaf.parts) {
          views.push_back({prefix + part.name, rank::kF32, part.global_shape, part.box_offset,
                           part.box_size, static_cast<uint32_t>(replica), data,
                           static_cast<uint64_t>(part.elements()) * sizeof(float)});
          data += part.elements();
        }
      }
    }
  }
  return views;
}

}  // namespace holdfast::worker
