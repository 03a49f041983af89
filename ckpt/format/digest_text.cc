// SPDX-License-Identifier: Apache-2.0
#include "ckpt/format/digest_text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace holdfast::ckpt {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string DigestHex(const rank::Digest128& digest) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest.high),
                static_cast<unsigned long long>(digest.low));
  return text;
}

bool ParseDigestHex(std::string_view text, rank::Digest128* out) {
  if (text.size() != 32) return false;
  uint64_t half[2] = {0, 0};
  for (size_t i = 0; i < text.size(); ++i) {
    const int digit = HexDigit(text[i]);
    if (digit < 0) return false;
    half[i / 16] = half[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  *out = {half[1], half[0]};
  return true;
}

rank::Digest128 Xxh128(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

uint64_t Xxh64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace holdfast::ckpt
