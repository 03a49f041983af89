// SPDX-License-Identifier: Apache-2.0
// Which tokens a rank trains on: a pure function of (data, seed, consumed samples, layout). There
// is no loader state to save.
//
// Sample k is seq_len + 1 tokens (the last is only a label). With n = (tokens - 1) / seq_len
// samples in an epoch, sample k of epoch e = k / n starts at permutation_(seed, e)(k mod n) *
// seq_len. Samples run across documents. Micro-batch m of dp coordinate d, with c samples consumed
// before the step: samples c + (m * dp + d) * micro_batch ... Threads: a source may be shared.
#ifndef HOLDFAST_WORKER_DATA_LOADER_H_
#define HOLDFAST_WORKER_DATA_LOADER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace holdfast::worker {

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Writes seq_len + 1 tokens, each below the vocabulary. DATA_LOSS names file, token and place.
  virtual absl::Status Read(uint64_t sample, int64_t* out) const = 0;
};

// Tokens of PREFIX.bin. FAILED_PRECONDITION when it holds fewer than seq_len + 1 tokens.
absl::StatusOr<std::unique_ptr<SampleSource>> OpenTokens(FileSystem* fs, const std::string& prefix,
                                                         uint64_t seed, int64_t seq_len,
                                                         int64_t vocab);
// Uniform random tokens, a function of (seed, sample, position): nothing can be learned from them;
// for measurements.
std::unique_ptr<SampleSource> SyntheticTokens(uint64_t seed, int64_t seq_len, int64_t vocab);

struct BatchPlace {
  uint64_t consumed = 0;  // samples before this step
  int64_t dp = 1, dp_index = 0, micro_batch_size = 1, micro_batch = 0;
};
// The first sample of a micro-batch; the others follow it.
uint64_t FirstSample(const BatchPlace& place);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_DATA_LOADER_H_
