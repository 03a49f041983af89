// SPDX-License-Identifier: Apache-2.0
#include "worker/testing/rank_threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"

namespace holdfast::worker {
namespace {

constexpr int64_t kTimeoutMs = 60'000;

void CopyOut(TrainState& state, RankOutcome* out) {
  std::vector<ckpt::TensorView> views = state.Views();
  for (const ckpt::TensorView& view : views) {
    const float* values = static_cast<const float*>(view.data);
    out->boxes.push_back({view.name, view.global_shape, view.box_offset, view.box_size,
                          view.replica,
                          std::vector<float>(values, values + view.bytes / sizeof(float))});
  }
  // Gradients lie as the parameters do.
  for (FlatBucket& bucket : state.buckets()) {
    const float* grad = bucket.grad.data_ptr<float>();
    const float* param = bucket.param.data_ptr<float>();
    for (const ckpt::TensorView& view : views) {
      const int64_t at = static_cast<const float*>(view.data) - param,
                    n = static_cast<int64_t>(view.bytes / sizeof(float));
      if (!view.name.starts_with("param.") || at < 0 || at >= bucket.plan.elements) continue;
      out->boxes.push_back({"grad." + view.name.substr(6), view.global_shape, view.box_offset,
                            view.box_size, view.replica,
                            std::vector<float>(grad + at, grad + at + n)});
    }
  }
}

void RunRank(const RunPlan& plan, int rank, const c10::intrusive_ptr<c10d::Store>& store,
             RankOutcome* out) {
  const Config& config = plan.config;
  auto mesh = parallel::Mesh::Create(config.parallel.dp, config.parallel.tp, rank,
                                     config.parallel.dp * config.parallel.tp);
  if (!mesh.ok()) return void(out->status = mesh.status());
  parallel::GroupOptions group_options;
  group_options.timeout_ms = kTimeoutMs;
  group_options.prefix = absl::StrCat("test/", plan.attempt);
  auto groups = parallel::ConnectGroups(*mesh, store, group_options);
  if (!groups.ok()) return void(out->status = groups.status());
  if (plan.skip_gradient_reduction) groups->dp = parallel::SoloGroup();
  ArenaLink link(plan.arenas == nullptr ? nullptr : &(*plan.arenas)[rank], plan.attempt);
  if (plan.arenas != nullptr) {
    (*plan.arenas)[rank].rank = static_cast<uint32_t>(rank);
    (*plan.arenas)[rank].world_size = static_cast<uint32_t>(mesh->ranks());
  }
  if (plan.arrange) plan.arrange(rank, &link);
  const auto data = SyntheticTokens(config.train.seed, config.model.seq_len, config.model.vocab);
  const SystemClock clock;
  TrainerOptions options{config, plan.snapshot_every, plan.persist_every, plan.drop, nullptr};
  Trainer trainer(std::move(options), *mesh, *groups, &link, data.get(), &clock);
  const auto start = trainer.Prepare(plan.restore);
  out->status = start.status();
  if (!start.ok()) return;
  out->start = *start;
  if (plan.after_prepare) plan.after_prepare(rank, &trainer.state());
  const auto end = trainer.Run();
  out->status = end.status();
  if (end.ok()) out->end = *end;
  out->records = link.records;
  out->sealed = link.sealed;
  out->persisted = link.persisted;
  out->skipped = link.skipped;
  CopyOut(trainer.state(), out);
}

int64_t FlatIndex(const HeldBox& box, int64_t element) {
  const int64_t cols = box.size.size() == 2 ? static_cast<int64_t>(box.size[1]) : 1;
  const int64_t row = element / cols + static_cast<int64_t>(box.offset[0]);
  return box.size.size() == 2 ? row * static_cast<int64_t>(box.global_shape[1]) + element % cols +
                                    static_cast<int64_t>(box.offset[1])
                              : row;
}

}  // namespace

std::vector<RankOutcome> RunRanks(const RunPlan& plan) {
  at::set_num_threads(1);
  const int ranks = static_cast<int>(plan.config.parallel.dp * plan.config.parallel.tp);
  std::vector<RankOutcome> outcomes(ranks);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { RunRank(plan, rank, store, &outcomes[rank]); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::map<std::string, std::vector<float>> Assemble(const std::vector<RankOutcome>& ranks,
                                                   std::string* problem) {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::vector<bool>> filled;
  for (int pass = 0; pass < 2; ++pass) {  // first what is written, then the copies
    for (const RankOutcome& outcome : ranks) {
      for (const HeldBox& box : outcome.boxes) {
        if ((box.replica == 0) != (pass == 0)) continue;
        uint64_t total = 1;
        for (const uint64_t n : box.global_shape) total *= n;
        std::vector<float>& tensor = tensors[box.name];
        std::vector<bool>& mask = filled[box.name];
        tensor.resize(total);
        mask.resize(total);
        for (size_t i = 0; i < box.values.size(); ++i) {
          const int64_t at = FlatIndex(box, static_cast<int64_t>(i));
          if (pass == 1 && std::memcmp(&tensor[at], &box.values[i], sizeof(float)) != 0)
            *problem = box.name + ": replicas differ";
          if (pass == 0 && mask[at]) *problem = box.name + ": written twice";
          if (pass == 0) tensor[at] = box.values[i], mask[at] = true;
        }
      }
    }
  }
  for (const auto& [name, mask] : filled) {
    for (const bool there : mask) {
      if (!there) *problem = name + ": has holes";
    }
  }
  return tensors;
}

}  // namespace holdfast::worker
