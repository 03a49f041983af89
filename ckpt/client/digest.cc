// SPDX-License-Identifier: Apache-2.0
// XXH3 compiled in: a rank links no third-party library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ckpt/client/snapshot.h"

namespace holdfast::ckpt {
namespace {

// Half of a small L2: what was just hashed is still there when it is copied.
constexpr size_t kBlockBytes = 128 * 1024;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

rank::Digest128 FromXxh(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

rank::Digest128 DigestBytes(const void* data, size_t bytes) {
  return FromXxh(XXH3_128bits(data, bytes));
}

rank::Digest128 CopyAndDigest(void* to, const void* from, size_t bytes) {
  if (bytes <= kBlockBytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return DigestBytes(from, bytes);
  }
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  // The digest is of the source, so that an error of the copy shows when the copy is digested
  // again.
  for (size_t done = 0; done < bytes;) {
    const size_t block = std::min(kBlockBytes, bytes - done);
    const char* source = static_cast<const char*>(from) + done;
    XXH3_128bits_update(state.get(), source, block);
    std::memcpy(static_cast<char*>(to) + done, source, block);
    done += block;
  }
  return FromXxh(XXH3_128bits_digest(state.get()));
}

}  // namespace holdfast::ckpt
