// SPDX-License-Identifier: Apache-2.0
// Where an attempt starts: the memory snapshot the keeper holds, a committed checkpoint in a store
// directory, or scratch.
#ifndef HOLDFAST_WORKER_RESTORE_H_
#define HOLDFAST_WORKER_RESTORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "ckpt/client/snapshot.h"
#include "worker/rank_link.h"

namespace holdfast::worker {

struct StartPoint {
  uint64_t step = 0;               // already done; 0: scratch
  uint64_t samples = 0;            // already consumed
  std::string source = "scratch";  // for people
};

// "checkpoint:<store>:j-42@<step>.<attempt>".
struct CheckpointSource {
  std::string store;
  CheckpointId id;
};
absl::StatusOr<CheckpointSource> ParseCheckpointSource(const std::string& text);

// Reads every box of `tensors` from the store, verified, whatever layout wrote it. UNIMPLEMENTED in
// a build without the checkpoint engine (-DHOLDFAST_CONTROL_PLANE=OFF).
absl::StatusOr<StartPoint> ReadCheckpoint(const CheckpointSource& source,
                                          const std::vector<ckpt::TensorView>& tensors);

// Fills `tensors` from what `link` offers or `restore` (HOLDFAST_RESTORE) names. For step 0 they
// are left alone.
absl::StatusOr<StartPoint> Restore(RankLink* link, const std::string& restore,
                                   const std::vector<ckpt::TensorView>& tensors);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_RESTORE_H_
