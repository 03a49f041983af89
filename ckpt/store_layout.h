// SPDX-License-Identifier: Apache-2.0
// Names and paths in a store directory. Pure. docs/formats/store.md.
#ifndef HOLDFAST_CKPT_STORE_LAYOUT_H_
#define HOLDFAST_CKPT_STORE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace holdfast::ckpt {

inline constexpr char kFormatFileName[] = "FORMAT";
inline constexpr char kFormatText[] = "holdfast-store 1\n";
inline constexpr char kJobsDirName[] = "jobs";

// "100.3" to step 100 of attempt 3 of `job`; nothing for any other name.
std::optional<CheckpointId> ParseCheckpointDirName(JobId job, std::string_view name);
// "rank-00003.manifest" to 3; nothing for any other name.
std::optional<uint32_t> ParseRankManifestFileName(std::string_view name);

// "j-42@100.3", or "j-42@100" with `has_attempt` false.
struct CheckpointRef {
  CheckpointId id;
  bool has_attempt = false;
};
std::optional<CheckpointRef> ParseCheckpointRef(std::string_view text);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORE_LAYOUT_H_
