// SPDX-License-Identifier: Apache-2.0
// Digests as text, and XXH3 for this folder (header-only: nothing is linked).
#ifndef HOLDFAST_CKPT_FORMAT_DIGEST_TEXT_H_
#define HOLDFAST_CKPT_FORMAT_DIGEST_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/rank/arena.h"

namespace holdfast::ckpt {

// 32 lower-case hexadecimal digits, the high half first.
std::string DigestHex(const rank::Digest128& digest);
// Exactly what DigestHex writes.
bool ParseDigestHex(std::string_view text, rank::Digest128* out);

rank::Digest128 Xxh128(const void* data, size_t bytes);
uint64_t Xxh64(const void* data, size_t bytes);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_DIGEST_TEXT_H_
