// SPDX-License-Identifier: Apache-2.0
#include "proto/text.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace holdfast::proto {
namespace {

constexpr int64_t kMsPerSecond = 1000;
constexpr int64_t kMsPerMinute = 60 * kMsPerSecond;
constexpr int64_t kMsPerHour = 60 * kMsPerMinute;
constexpr int64_t kMsPerDay = 24 * kMsPerHour;
constexpr size_t kSuggestionDistanceMax = 3;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

int64_t UnitMs(std::string_view unit) {
  if (unit == "ms") return 1;
  if (unit == "s") return kMsPerSecond;
  if (unit == "m") return kMsPerMinute;
  if (unit == "h") return kMsPerHour;
  if (unit == "d") return kMsPerDay;
  return 0;
}

// Takes leading digits off `text`. False when there are none or they overflow.
bool TakeNumber(std::string_view* text, uint64_t* out) {
  size_t n = 0;
  while (n < text->size() && std::isdigit(static_cast<unsigned char>((*text)[n])) != 0) ++n;
  if (n == 0 || !absl::SimpleAtoi(View(text->substr(0, n)), out)) return false;
  text->remove_prefix(n);
  return true;
}

absl::Status BadDuration() {
  return absl::InvalidArgumentError("not a duration such as 500ms, 90s, 10m, 2h or 1h30m");
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// How many bytes the UTF-8 sequence that starts at text[i] has; 0 when it is not legal.
size_t Utf8Length(std::string_view text, size_t i) {
  const auto at = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char c = at(i);
  if (c < 0x80) return 1;
  const size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
  if (c < 0xC2 || c > 0xF4 || i + n > text.size()) return 0;
  for (size_t k = 1; k < n; ++k) {
    if ((at(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char next = at(i + 1);
  const bool overlong = (c == 0xE0 && next < 0xA0) || (c == 0xF0 && next < 0x90);
  const bool surrogate = c == 0xED && next > 0x9F;
  const bool too_large = c == 0xF4 && next > 0x8F;
  return overlong || surrogate || too_large ? 0 : n;
}

// The state of SplitCommand.
struct Splitter {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // a word has begun, perhaps an empty one ("")

  void End() {
    if (open) words.push_back(std::move(word));
    word.clear();
    open = false;
  }
  void Add(char c) {
    word.push_back(c);
    open = true;
  }
};

// Reads a quoted part whose opening quote is at text[i]; returns the index of the closing one, or
// npos.
size_t TakeQuoted(std::string_view text, size_t i, Splitter* out) {
  const char quote = text[i];
  out->open = true;
  for (++i; i < text.size(); ++i) {
    if (text[i] == quote) return i;
    const bool escapes =
        quote == '"' && text[i] == '\\' && i + 1 < text.size() &&
        (text[i + 1] == '"' || text[i + 1] == '\\' || text[i + 1] == '$' || text[i + 1] == '`');
    if (escapes) ++i;
    out->word.push_back(text[i]);
  }
  return std::string_view::npos;
}

}  // namespace

absl::StatusOr<int64_t> ParseDurationMs(std::string_view text, int64_t bare_unit_ms) {
  if (text.empty()) return BadDuration();
  int64_t total = 0;
  bool first = true;
  while (!text.empty()) {
    uint64_t number = 0;
    if (!TakeNumber(&text, &number)) return BadDuration();
    size_t n = 0;
    while (n < text.size() && std::isalpha(static_cast<unsigned char>(text[n])) != 0) ++n;
    const bool bare = n == 0;
    if (bare && !(first && text.empty())) return BadDuration();
    const int64_t unit = bare ? bare_unit_ms : UnitMs(text.substr(0, n));
    if (unit == 0) return BadDuration();
    text.remove_prefix(n);
    const int64_t room = std::numeric_limits<int64_t>::max() - total;
    if (number > static_cast<uint64_t>(room / unit))
      return absl::InvalidArgumentError("too long a duration");
    total += static_cast<int64_t>(number) * unit;
    first = false;
  }
  return total;
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const auto bad = absl::InvalidArgumentError("not a size such as 67108864, 64MiB or 2GiB");
  uint64_t number = 0;
  if (!TakeNumber(&text, &number)) return bad;
  int shift = 0;
  if (!text.empty() && text != "B") {
    const size_t power = std::string_view("kmgt").find(static_cast<char>(std::tolower(text[0])));
    if (power == std::string_view::npos) return bad;
    shift = 10 * (static_cast<int>(power) + 1);
    const std::string_view rest = text.substr(1);
    if (!rest.empty() && rest != "i" && rest != "B" && rest != "iB") return bad;
  }
  if (shift > 0 && number > (std::numeric_limits<uint64_t>::max() >> shift))
    return absl::InvalidArgumentError("too large");
  return number << shift;
}

std::string FormatDurationMs(int64_t ms) {
  if (ms < 0) return absl::StrCat("-", FormatDurationMs(-ms));
  if (ms < kMsPerSecond || (ms < kMsPerMinute && ms % kMsPerSecond != 0))
    return absl::StrCat(ms, "ms");
  std::string out;
  const struct {
    int64_t unit;
    const char* name;
  } units[] = {{kMsPerDay, "d"}, {kMsPerHour, "h"}, {kMsPerMinute, "m"}, {kMsPerSecond, "s"}};
  for (const auto& u : units) {
    if (ms >= u.unit) absl::StrAppend(&out, ms / u.unit, u.name);
    ms %= u.unit;
  }
  return out;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t power = 0;
  while (power + 1 < std::size(kNames) && (bytes >> (10 * (power + 1))) > 0) ++power;
  const uint64_t unit = 1ull << (10 * power);
  if (bytes % unit == 0) return absl::StrCat(bytes / unit, kNames[power]);
  return absl::StrFormat("%.1f%s", static_cast<double>(bytes) / static_cast<double>(unit),
                         kNames[power]);
}

absl::StatusOr<std::vector<std::string>> SplitCommand(std::string_view text) {
  Splitter out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\'' || c == '"') {
      const size_t end = TakeQuoted(text, i, &out);
      if (end == std::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("the quote ", std::string(1, c),
                                                       " at character ", i + 1, " is not closed"));
      }
      i = end;
    } else if (c == '\\') {
      if (i + 1 == text.size()) return absl::InvalidArgumentError("ends with a lone backslash");
      out.Add(text[++i]);
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      out.End();
    } else {
      out.Add(c);
    }
  }
  out.End();
  return std::move(out.words);
}

absl::StatusOr<CheckpointId> ParseCheckpointName(std::string_view text) {
  const auto bad = absl::InvalidArgumentError("not a checkpoint such as j-42@100 or j-42@100.3");
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return bad;
  CheckpointId id;
  auto job = ParseJobId(text.substr(0, at));
  if (!job.ok()) return bad;
  id.job = *job;
  text.remove_prefix(at + 1);
  if (!TakeNumber(&text, &id.step)) return bad;
  if (text.empty()) return id;
  if (text[0] != '.') return bad;
  text.remove_prefix(1);
  if (!TakeNumber(&text, &id.attempt) || !text.empty() || id.attempt == 0) return bad;
  return id;
}

std::string NearestName(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance =
      std::min(kSuggestionDistanceMax, std::max<size_t>(1, wrong.size() / 2)) + 1;
  for (const std::string& name : known) {
    // "gpus" for "gpus_per_node" is far by edits, but clearly meant.
    const bool prefix = wrong.size() >= 4 && name.substr(0, wrong.size()) == wrong;
    const size_t distance = prefix ? 1 : EditDistance(wrong, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = Utf8Length(text, i);
    if (n == 0) return false;
    i += n;
  }
  return true;
}

namespace {

bool IsInsideCharacter(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string HeadUtf8(std::string_view text, size_t bytes_max) {
  size_t end = std::min(text.size(), bytes_max);
  while (end < text.size() && end > 0 && IsInsideCharacter(text[end])) --end;
  return std::string(text.substr(0, end));
}

std::string TailUtf8(std::string_view text, size_t bytes_max) {
  size_t begin = text.size() - std::min(text.size(), bytes_max);
  while (begin > 0 && begin < text.size() && IsInsideCharacter(text[begin])) ++begin;
  return std::string(text.substr(begin));
}

bool IsEnvironmentName(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

}  // namespace holdfast::proto
