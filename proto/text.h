// SPDX-License-Identifier: Apache-2.0
// Small parsers for what people type: durations, sizes, command lines, checkpoint names, and the
// nearest known name to a wrong one. Pure; errors say what is allowed but do not name the field:
// the caller does.
#ifndef HOLDFAST_PROTO_TEXT_H_
#define HOLDFAST_PROTO_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"

namespace holdfast::proto {

// "90s", "10m", "2h30m", "500ms", "1d"; a bare number counts `bare_unit_ms` each. Result in ms.
absl::StatusOr<int64_t> ParseDurationMs(std::string_view text, int64_t bare_unit_ms);

// "64MiB", "2GiB", "64Mi", "10k" (1024 each, with or without i and B), a bare number of bytes.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// "1h30m", "90s", "1500ms".
std::string FormatDurationMs(int64_t ms);
// "64MiB" when it divides evenly, else "1.5GiB".
std::string FormatBytes(uint64_t bytes);

// Splits like a shell: blanks, '...', "..." with \" and \\, backslash. No expansion of any kind.
absl::StatusOr<std::vector<std::string>> SplitCommand(std::string_view text);

// "j-42@100" (attempt 0: whichever was committed) or "j-42@100.3".
absl::StatusOr<CheckpointId> ParseCheckpointName(std::string_view text);

// The known name with the smallest edit distance, if it is near enough to be meant; else "".
std::string NearestName(std::string_view wrong, const std::vector<std::string>& known);

bool IsUtf8(std::string_view text);
// At most `bytes_max` of the beginning or the end, never half a character: a message with one in a
// text field is written and cannot be read again.
std::string HeadUtf8(std::string_view text, size_t bytes_max);
std::string TailUtf8(std::string_view text, size_t bytes_max);
// [A-Za-z_][A-Za-z0-9_]*
bool IsEnvironmentName(std::string_view name);

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_TEXT_H_
