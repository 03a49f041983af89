// SPDX-License-Identifier: Apache-2.0
#include "tests/rank/state.h"

#include <cmath>

namespace holdfast::test_rank {
namespace {

constexpr uint64_t kMultiplier = 6364136223846793005ull;
constexpr uint64_t kIncrement = 1442695040888963407ull;

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

State::State(uint64_t seed, uint32_t rank, uint32_t world_size, uint64_t bytes)
    : seed_(seed), rank_(rank), world_size_(world_size), words_(bytes / 8), counter_{seed, 0} {
  for (size_t i = 0; i < words_.size(); ++i)
    words_[i] = Mix(seed_ * kIncrement + rank_ * words_.size() + i);
}

void State::Update(uint64_t step) {
  const uint64_t salt = Mix(seed_ ^ (uint64_t{rank_} << 32) ^ step * kIncrement);
  for (uint64_t& word : words_) word = word * kMultiplier + salt;
  counter_[1] = step;
}

void State::PassOver(uint64_t step) { counter_[1] = step; }

double State::Loss(uint64_t step) const {
  const double noise = static_cast<double>(words_[0] >> 44) / (1 << 20);  // 0 to 1
  return 8.0 / std::sqrt(1.0 + static_cast<double>(step)) + 1e-3 * noise;
}

std::vector<ckpt::TensorView> State::Tensors() {
  ckpt::TensorView words;
  words.name = "model.words";
  words.dtype = rank::kI64;
  words.global_shape = {words_.size() * world_size_};
  words.box_offset = {words_.size() * rank_};
  words.box_size = {words_.size()};
  words.data = words_.data();
  words.bytes = words_.size() * 8;

  ckpt::TensorView counter;
  counter.name = "optimizer.counter";
  counter.dtype = rank::kI64;
  counter.global_shape = counter.box_size = {counter_.size()};
  counter.box_offset = {0};
  counter.replica = rank_;  // every rank holds it, rank 0's copy is written
  counter.data = counter_.data();
  counter.bytes = counter_.size() * 8;
  return {words, counter};
}

}  // namespace holdfast::test_rank
