// SPDX-License-Identifier: Apache-2.0
// May what ran on a lost node be started elsewhere? With `fence: commit` at once: all the old
// attempt can still touch refuses it. With `fence: witness` only once the node has provably stopped
// its ranks: more than half of its witnesses have not heard it for fence_ms + margin, or there is
// proof (an agent of that node reports none alive, the node booted anew, an operator's word).
// Without witnesses only proof counts. Pure.
#ifndef HOLDFAST_SCHEDULER_CORE_FENCE_RELEASE_H_
#define HOLDFAST_SCHEDULER_CORE_FENCE_RELEASE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::sched {

// What one witness is known to say about the lost node.
struct WitnessWord {
  bool alive = false;               // it reached the node, or heard it again
  int64_t not_heard_since_ns = -1;  // scheduler's clock; -1: the witness has not been reached
  int64_t answered_ns = 0;          // when it said so: it speaks of the time until then alone
};

struct FenceInput {
  v1::FenceMode mode = v1::FENCE_MODE_WITNESS;
  int64_t fence_ms = 0;  // 0: the default
  bool proof = false;
  std::vector<std::string> witnesses = {};        // those the node was told
  std::map<std::string, WitnessWord> words = {};  // by witness
};

struct FenceVerdict {
  bool released = false;
  std::string reason;  // why, or what is waited for, with numbers
};

FenceVerdict JudgeFence(const FenceInput& input);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_CORE_FENCE_RELEASE_H_
