// SPDX-License-Identifier: Apache-2.0
// A sealed snapshot as the writer sees it. The arena is shared with a rank, so everything is copied
// out once, checked against the mapping and the table's digest, and only the copy is used.
#ifndef HOLDFAST_CKPT_SNAPSHOT_SOURCE_H_
#define HOLDFAST_CKPT_SNAPSHOT_SOURCE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ckpt/format/manifest.h"
#include "ckpt/store.h"

namespace holdfast::ckpt {

struct SourceView {
  RankManifest manifest;          // without the places in the pack
  std::vector<const char*> data;  // of each tensor of the manifest
  MemoryRegion region;            // the snapshot's data area
};

// FAILED_PRECONDITION when the buffer is not being written or holds another snapshot than `id`,
// DATA_LOSS when its table is damaged, INVALID_ARGUMENT for a mapping that is no arena.
absl::StatusOr<SourceView> ReadSource(const CheckpointId& id, const SnapshotSource& source);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_SOURCE_H_
