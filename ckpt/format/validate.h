// SPDX-License-Identifier: Apache-2.0
// Checks shared by decoding and joining. Pure.
#ifndef HOLDFAST_CKPT_FORMAT_VALIDATE_H_
#define HOLDFAST_CKPT_FORMAT_VALIDATE_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

inline constexpr uint32_t kWorldSizeMax = 4096 * 64;  // nodes of a job times ranks of a node

// 1 to rank::kTensorNameBytes - 1 printable ASCII characters.
bool IsValidTensorName(std::string_view name);

// Product of `dims`, or nothing when it overflows.
std::optional<uint64_t> Product(const std::vector<uint64_t>& dims);

// Whether `box` has the dimensions of `shape` and lies inside it.
bool BoxInside(const Box& box, const std::vector<uint64_t>& shape);

bool BoxesOverlap(const Box& a, const Box& b);

// What one manifest alone can be checked for: ranges, names, boxes inside their tensors, sizes,
// places in the pack.
absl::Status ValidateRankManifest(const RankManifest& manifest);

// What the manifests of all ranks must satisfy together; `ranks` in rank order. See JoinManifests.
absl::Status ValidateTogether(const std::vector<RankManifest>& ranks);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_VALIDATE_H_
