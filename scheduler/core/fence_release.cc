// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/fence_release.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::sched {

FenceVerdict JudgeFence(const FenceInput& input) {
  if (input.proof) return {true, "its ranks are proven gone"};
  if (input.mode == v1::FENCE_MODE_COMMIT) return {true, "fence: commit"};
  if (input.witnesses.empty()) {
    return {false,
            "fence: witness, but the node had no witnesses: waits for its agent or for an operator "
            "to confirm that it is dead"};
  }
  const int64_t needed_ms =
      (input.fence_ms > 0 ? input.fence_ms : kFenceMsDefault) + kFenceMarginMs;
  size_t silent = 0, unreached = 0;
  for (const std::string& witness : input.witnesses) {
    const auto word = input.words.find(witness);
    if (word == input.words.end() || (word->second.not_heard_since_ns < 0 && !word->second.alive)) {
      ++unreached;
    } else if (!word->second.alive &&
               word->second.answered_ns - word->second.not_heard_since_ns >= needed_ms * kNsPerMs) {
      ++silent;
    }
  }
  const size_t all = input.witnesses.size();
  std::string text =
      absl::StrCat(silent, " of ", all, " witness(es) have not heard it for ", needed_ms, " ms");
  if (unreached > 0) absl::StrAppend(&text, ", ", unreached, " could not be asked");
  return {2 * silent > all, "fence: witness, " + text};
}

}  // namespace holdfast::sched
