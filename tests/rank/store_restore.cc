// SPDX-License-Identifier: Apache-2.0
#include "ckpt/store.h"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "base/file_system.h"
#include "tests/rank/state.h"

namespace holdfast::test_rank {
namespace {

absl::Status Read(const std::string& root, const CheckpointId& id,
                  const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) {
  auto store = ckpt::Store::Open(PosixFileSystem(), root, {.use_uring = false, .create = false});
  if (!store.ok()) return store.status();
  auto record = (*store)->ReadCommit(id);
  if (!record.ok()) return record.status();
  if (absl::Status same = ckpt::CheckModel(*record, tensors); !same.ok()) return same;
  *samples = record->samples;
  for (const ckpt::TensorView& t : tensors) {
    const absl::Status read =
        (*store)->ReadBox(*record, t.name, {t.box_offset, t.box_size}, t.data);
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

}  // namespace

bool RestoreFromStore(const std::string& where, const std::vector<ckpt::TensorView>& tensors,
                      uint64_t* step, uint64_t* samples, std::string* reason) {
  const size_t colon = where.rfind(':');
  CheckpointId id;
  int used = 0;
  if (colon == std::string::npos ||
      sscanf(where.c_str() + colon + 1, "j-%" SCNu64 "@%" SCNu64 ".%" SCNu64 "%n", &id.job.value,
             &id.step, &id.attempt, &used) != 3 ||
      where[colon + 1 + static_cast<size_t>(used)] != '\0') {
    *reason = "checkpoint:" + where + ": expected <store>:j-<job>@<step>.<attempt>";
    return false;
  }
  const absl::Status status = Read(where.substr(0, colon), id, tensors, samples);
  *step = id.step;
  *reason = std::string(status.message());
  return status.ok();
}

}  // namespace holdfast::test_rank
