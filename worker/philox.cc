// SPDX-License-Identifier: Apache-2.0
#include "worker/philox.h"

#include <cmath>
#include <numbers>

namespace holdfast::worker {

uint64_t PhiloxKey(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  uint64_t x = hash + 0x9e3779b97f4a7c15ull * (seed + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

float NormalStream::At(uint64_t index) {
  if (index / 4 != block_) {
    block_ = index / 4;
    const PhiloxBlock bits = Philox4x32(key_, block_, 0);
    for (int pair = 0; pair < 2; ++pair) {  // Box-Muller; +0.5 keeps the logarithm finite
      const double u = (bits[2 * pair] + 0.5) * 0x1p-32,
                   angle = 2 * std::numbers::pi * (bits[2 * pair + 1] * 0x1p-32);
      const double radius = std::sqrt(-2 * std::log(u));
      values_[2 * pair] = static_cast<float>(radius * std::cos(angle));
      values_[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
  return values_[index % 4];
}

uint64_t PermutedIndex(uint64_t key, uint64_t n, uint64_t index) {
  int half_bits = 1;
  while (half_bits < 32 && (1ull << (2 * half_bits)) < n) ++half_bits;
  const uint64_t mask = (1ull << half_bits) - 1;
  uint64_t x = index;
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (Philox4x32(key, right, round)[0] & mask);
      left = right;
      right = mixed;
    }
    x = (left << half_bits) | right;
  } while (x >= n);
  return x;
}

}  // namespace holdfast::worker
