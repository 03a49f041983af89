// SPDX-License-Identifier: Apache-2.0
#include "ckpt/digest_stream.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace holdfast::ckpt {

struct alignas(64) DigestStream::State {
  XXH3_state_t xxh;
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
DigestStream::~DigestStream() = default;

void DigestStream::Update(const void* data, size_t bytes) {
  XXH3_128bits_update(&state_->xxh, data, bytes);
}

rank::Digest128 DigestStream::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.low64, hash.high64};
}

}  // namespace holdfast::ckpt
