// SPDX-License-Identifier: Apache-2.0
#include "agent/kept_logs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace holdfast::agent {
namespace fs = std::filesystem;
namespace {

// Bytes of the UTF-8 character that begins at `at`, 0 when there is none.
size_t CharacterBytes(const std::string& text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t bytes = first < 0x80    ? 1
                       : first >= 0xf0 ? 4
                       : first >= 0xe0 ? 3
                       : first >= 0xc2 ? 2
                                       : 0;
  if (bytes == 0 || first > 0xf4 || at + bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return 0;
  }
  if (bytes == 1) return 1;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const bool bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                   (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return bad ? 0 : bytes;
}

}  // namespace

std::string KeptLogDir(const NodeOptions& options, JobId job) {
  return JoinPath(JoinPath(options.state_dir, "logs"), ToString(job));
}

absl::Status KeepLogs(const std::string& log_dir, const NodeOptions& options, JobId job) {
  std::error_code error;
  if (!fs::exists(log_dir, error) || fs::is_empty(log_dir, error)) return absl::OkStatus();
  const fs::path kept = KeptLogDir(options, job);
  fs::create_directories(kept.parent_path(), error);
  fs::remove_all(kept, error);
  fs::rename(log_dir, kept, error);
  if (error)
    return absl::InternalError(
        absl::StrCat("move ", log_dir, " to ", kept.string(), ": ", error.message()));
  std::vector<uint64_t> jobs;
  for (const fs::directory_entry& entry : fs::directory_iterator(kept.parent_path(), error)) {
    const absl::StatusOr<JobId> id = ParseJobId(entry.path().filename().string());
    if (id.ok()) jobs.push_back(id->value);
  }
  std::sort(jobs.begin(), jobs.end());
  for (size_t i = 0; i + kLogsKeptJobs < jobs.size(); ++i)
    fs::remove_all(KeptLogDir(options, JobId{jobs[i]}), error);
  return absl::OkStatus();
}

std::string ToUtf8(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    out.append(bytes == 0 ? "?" : text.substr(at, bytes));
    at += bytes == 0 ? 1 : bytes;
  }
  return out;
}

}  // namespace holdfast::agent
