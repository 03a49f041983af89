// SPDX-License-Identifier: Apache-2.0
// XXH3-128 of bytes that come in pieces. One thread.
#ifndef HOLDFAST_CKPT_DIGEST_STREAM_H_
#define HOLDFAST_CKPT_DIGEST_STREAM_H_

#include <cstddef>
#include <memory>

#include "base/rank/arena.h"

namespace holdfast::ckpt {

class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;
  void Update(const void* data, size_t bytes);
  rank::Digest128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_DIGEST_STREAM_H_
