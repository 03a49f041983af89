// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): number i of a stream is a
// function of (key, i) alone, so every layout draws the same values for the same global element,
// and a recovered run needs no generator state.
#ifndef HOLDFAST_WORKER_PHILOX_H_
#define HOLDFAST_WORKER_PHILOX_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace holdfast::worker {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                   static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// A key for (seed, name), e.g. a parameter's. FNV-1a, then a finaliser, so that near names give
// unrelated keys.
uint64_t PhiloxKey(uint64_t seed, std::string_view name);

// Standard normal numbers by global index. Elements 4i..4i+3 share one block, which is kept:
// ascending reads are cheap. One thread.
class NormalStream {
 public:
  explicit NormalStream(uint64_t key) : key_(key) {}
  float At(uint64_t index);

 private:
  uint64_t key_;
  uint64_t block_ = ~0ull;
  std::array<float, 4> values_{};
};

// A permutation of [0, n) as a function of (key, index): a Feistel network over the next power of
// four, walked until it lands inside. n >= 1.
uint64_t PermutedIndex(uint64_t key, uint64_t n, uint64_t index);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_PHILOX_H_
