// SPDX-License-Identifier: Apache-2.0
#include "base/ids.h"

#include <charconv>

#include "absl/strings/str_cat.h"

namespace holdfast {

std::string ToString(JobId id) { return absl::StrCat("j-", id.value); }

absl::StatusOr<JobId> ParseJobId(std::string_view text) {
  JobId id;
  if (text.size() > 2 && text.substr(0, 2) == "j-" && text[2] != '0') {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 2, end, id.value);
    if (error == std::errc() && stop == end && id.value > 0) return id;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "job id '", absl::string_view(text.data(), text.size()), "' is not of the form j-42"));
}

bool IsValidName(std::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  if (name[0] == '.' || name[0] == '_' || name[0] == '-') return false;
  for (const char c : name) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

std::string ToString(const CheckpointId& id) {
  return absl::StrCat(ToString(id.job), "@", id.step, ".", id.attempt);
}

}  // namespace holdfast
