// SPDX-License-Identifier: Apache-2.0
#include "ckpt/store_layout.h"

#include <charconv>

#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {
namespace {

// Decimal without sign or leading zeros.
bool ParseNumber(std::string_view text, uint64_t* out) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::optional<CheckpointId> ParseCheckpointDirName(JobId job, std::string_view name) {
  const size_t dot = name.find('.');
  CheckpointId id{job, 0, 0};
  if (dot == std::string_view::npos) return std::nullopt;
  if (!ParseNumber(name.substr(0, dot), &id.step) ||
      !ParseNumber(name.substr(dot + 1), &id.attempt))
    return std::nullopt;
  if (id.attempt == 0) return std::nullopt;
  return id;
}

std::optional<uint32_t> ParseRankManifestFileName(std::string_view name) {
  constexpr std::string_view kPrefix = "rank-";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  uint32_t rank = 0;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), rank);
  if (error != std::errc() || name != RankManifestFileName(rank)) return std::nullopt;
  return rank;
}

std::optional<CheckpointRef> ParseCheckpointRef(std::string_view text) {
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return std::nullopt;
  const absl::StatusOr<JobId> job = ParseJobId(text.substr(0, at));
  if (!job.ok()) return std::nullopt;
  const std::string_view rest = text.substr(at + 1);
  if (rest.find('.') != std::string_view::npos) {
    const std::optional<CheckpointId> id = ParseCheckpointDirName(*job, rest);
    if (!id) return std::nullopt;
    return CheckpointRef{*id, true};
  }
  CheckpointRef ref{{*job, 0, 0}, false};
  if (!ParseNumber(rest, &ref.id.step)) return std::nullopt;
  return ref;
}

}  // namespace holdfast::ckpt
