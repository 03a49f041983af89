// SPDX-License-Identifier: Apache-2.0
// Writes one pack, digesting again what it writes. docs/formats/store.md.
#ifndef HOLDFAST_CKPT_PACK_WRITER_H_
#define HOLDFAST_CKPT_PACK_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "base/file_system.h"
#include "ckpt/snapshot_source.h"

namespace holdfast::ckpt {

// Writes and syncs the file `path` (new) for a laid out manifest (LayOutPack) and sets its
// pack_digest. DATA_LOSS
// ("silent corruption") when a tensor no longer matches the digest taken at the copy. Keeps the
// file.
absl::Status WritePack(FileSystem* fs, const std::string& path, uint64_t table_offset,
                       SourceView* source);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PACK_WRITER_H_
