// SPDX-License-Identifier: Apache-2.0
#include "agent/core/step_log.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr size_t kLineBytesMax = 4096;
constexpr uint64_t kStepsPerWriteMax = 4096;

std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

}  // namespace

std::string FormatStepLine(uint64_t attempt, const rank::StepRecord& record) {
  return absl::StrCat("{\"attempt\":", attempt, ",\"step\":", record.step,
                      ",\"samples\":", record.samples, ",\"loss\":", Number(record.loss),
                      ",\"grad_norm\":", Number(record.grad_norm), ",\"lr\":", Number(record.lr),
                      ",\"tokens_per_s\":", Number(record.tokens_per_s), "}\n");
}

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<StepLog> log(new StepLog(std::move(fd), path));
  HF_RETURN_IF_ERROR(log->FindLastLine());
  return log;
}

absl::Status StepLog::FindLastLine() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("fstat ", path_));
  const auto size = static_cast<uint64_t>(info.st_size);
  const uint64_t from = size > 2 * kLineBytesMax ? size - 2 * kLineBytesMax : 0;
  std::string tail(size - from, '\0');
  const ssize_t got = ::pread(fd_.get(), tail.data(), tail.size(), static_cast<off_t>(from));
  if (got != static_cast<ssize_t>(tail.size()))
    return ErrnoStatus(got < 0 ? errno : EIO, absl::StrCat("read ", path_));
  const size_t end = tail.rfind('\n');
  tail.resize(end == std::string::npos ? 0 : end + 1);
  bytes_ = from + tail.size();
  // A line without its newline was torn by the death of the agent that wrote it; the step is still
  // in the recorder.
  if (bytes_ != size && ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cut the torn last line of ", path_));
  }
  if (tail.empty()) return absl::OkStatus();
  const size_t begin = tail.rfind('\n', tail.size() - 2);
  const std::string line = tail.substr(begin == std::string::npos ? 0 : begin + 1);
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("attempt") || !json.contains("step") ||
      !json["attempt"].is_number_unsigned() || !json["step"].is_number_unsigned()) {
    return absl::DataLossError(
        absl::StrCat(path_, ": the last line is not a step; move the file away to go on: ", line));
  }
  attempt_ = json["attempt"].get<uint64_t>();
  step_ = json["step"].get<uint64_t>();
  return absl::OkStatus();
}

absl::Status StepLog::Append(uint64_t attempt, const StepSource& source, bool last) {
  rank::Progress progress;
  if (attempt < attempt_) return absl::OkStatus();
  if (!source.ReadProgress(&progress)) {
    // The rank died inside a write of its progress line. Its steps are still in the ring: take
    // those that follow the last one.
    if (!last || attempt != attempt_) return absl::OkStatus();
    rank::StepRecord record;
    progress.first_step = progress.steps_done = step_;
    while (progress.steps_done - step_ < rank::kStepSlots &&
           source.ReadStep(progress.steps_done + 1, &record)) {
      ++progress.steps_done;
    }
  }
  if (progress.first_step == 0 || progress.steps_done < progress.first_step)
    return absl::OkStatus();
  uint64_t next =
      attempt == attempt_ ? std::max(step_ + 1, progress.first_step) : progress.first_step;
  uint64_t lost = 0;
  if (progress.steps_done >= rank::kStepSlots && next + rank::kStepSlots <= progress.steps_done) {
    const uint64_t oldest = progress.steps_done - rank::kStepSlots + 1;
    lost = oldest - next;
    next = oldest;
  }
  std::string text;
  uint64_t written = 0;
  for (uint64_t n = 0; next <= progress.steps_done && n < kStepsPerWriteMax; ++n, ++next) {
    rank::StepRecord record;
    if (!source.ReadStep(next, &record)) {
      if (!last && progress.steps_done - next < rank::kStepSlots / 2)
        break;  // being written: next time
      ++lost;
      continue;
    }
    text += FormatStepLine(attempt, record);
    written = next;
  }
  if (text.empty()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(Write(text));
  attempt_ = attempt;
  step_ = written;
  lost_ += lost;
  return absl::OkStatus();
}

absl::Status StepLog::Write(std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::pwrite(fd_.get(), text.data() + done, text.size() - done,
                               static_cast<off_t>(bytes_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      if (done > 0 && ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
        return ErrnoStatus(errno, absl::StrCat("cut a half written line of ", path_));
      }
      return ErrnoStatus(error, absl::StrCat("append to ", path_));
    }
    done += static_cast<size_t>(n);
  }
  bytes_ += text.size();
  return absl::OkStatus();
}

}  // namespace holdfast::agent
