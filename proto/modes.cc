// SPDX-License-Identifier: Apache-2.0
#include "proto/modes.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace holdfast::proto {
namespace {

bool IsKnown(const std::string& cause) {
  const auto& known = KnownCauses();
  return std::find(known.begin(), known.end(), cause) != known.end();
}

v1::CauseMode ModeOf(absl::string_view word) {
  if (word == "observe") return v1::CAUSE_MODE_OBSERVE;
  if (word == "act") return v1::CAUSE_MODE_ACT;
  return v1::CAUSE_MODE_UNSPECIFIED;
}

}  // namespace

const std::vector<std::string>& KnownCauses() {
  static const auto* const causes = new std::vector<std::string>{kCauseHang, kCauseStopped};
  return *causes;
}

std::string ModeName(v1::CauseMode mode) { return mode == v1::CAUSE_MODE_ACT ? "act" : "observe"; }

absl::StatusOr<Modes> ParseModes(std::string_view text) {
  const absl::string_view whole(text.data(), text.size());
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(whole), "\" is not ", kModesAllowed));
  Modes modes;
  if (const v1::CauseMode all = ModeOf(whole); all != v1::CAUSE_MODE_UNSPECIFIED) {
    for (const std::string& cause : KnownCauses()) modes[cause] = all;
    return modes;
  }
  for (const absl::string_view part : absl::StrSplit(whole, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, '=');
    if (words.size() != 2) return bad;
    const std::string cause(absl::StripAsciiWhitespace(words[0]));
    const v1::CauseMode mode = ModeOf(absl::StripAsciiWhitespace(words[1]));
    if (!IsKnown(cause) || mode == v1::CAUSE_MODE_UNSPECIFIED) return bad;
    if (!modes.emplace(cause, mode).second) return bad;
  }
  return modes;
}

absl::Status CheckModes(const ModesField& modes) {
  for (const auto& [cause, mode] : modes) {
    if (!IsKnown(cause)) {
      return absl::InvalidArgumentError(absl::StrCat("modes: \"", absl::CHexEscape(cause),
                                                     "\" is no cause; known are ",
                                                     absl::StrJoin(KnownCauses(), ", ")));
    }
    if (mode != v1::CAUSE_MODE_OBSERVE && mode != v1::CAUSE_MODE_ACT) {
      return absl::InvalidArgumentError(
          absl::StrCat("modes: ", cause, ": ", static_cast<int>(mode), " is not observe or act"));
    }
  }
  return absl::OkStatus();
}

v1::CauseMode EffectiveMode(const v1::JobSpec& spec, const Modes& cluster,
                            const std::string& cause) {
  if (const auto own = spec.modes().find(cause); own != spec.modes().end()) return own->second;
  if (const auto all = cluster.find(cause); all != cluster.end()) return all->second;
  return cause == kCauseStopped ? v1::CAUSE_MODE_ACT : v1::CAUSE_MODE_OBSERVE;
}

}  // namespace holdfast::proto
