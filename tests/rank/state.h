// SPDX-License-Identifier: Apache-2.0
// The state of holdfast-test-rank: this rank's part of one global tensor, and a replicated counter.
// Every update is a function of (seed, rank, step) and of the state before it, so that a lost,
// doubled or torn update shows in the digest for ever.
#ifndef HOLDFAST_TESTS_RANK_STATE_H_
#define HOLDFAST_TESTS_RANK_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/client/snapshot.h"

namespace holdfast::test_rank {

class State {
 public:
  State(uint64_t seed, uint32_t rank, uint32_t world_size, uint64_t bytes);
  void Update(uint64_t step);
  void PassOver(uint64_t step);      // counts the step without its update: for negative controls
  double Loss(uint64_t step) const;  // falls with the steps, and tells two states apart
  // Step that the state is the result of, as the state itself says.
  uint64_t step() const { return counter_[1]; }
  // Views into this object.
  std::vector<ckpt::TensorView> Tensors();

 private:
  const uint64_t seed_;
  const uint32_t rank_, world_size_;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> counter_;  // seed, step
};

// Reads this rank's boxes from a checkpoint: `where` is "<store>:<job>@<step>.<attempt>". False
// with a reason.
bool RestoreFromStore(const std::string& where, const std::vector<ckpt::TensorView>& tensors,
                      uint64_t* step, uint64_t* samples, std::string* reason);

}  // namespace holdfast::test_rank

#endif  // HOLDFAST_TESTS_RANK_STATE_H_
