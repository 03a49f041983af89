// SPDX-License-Identifier: Apache-2.0
#include "agent/core/activity_model.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace holdfast::agent {
namespace {

constexpr double kBucketFirstMs = 100;
constexpr double kBucketRatio = 1.3;

size_t BucketOf(int64_t ms, size_t buckets) {
  if (static_cast<double>(ms) <= kBucketFirstMs) return 0;
  const double at =
      std::ceil(std::log(static_cast<double>(ms) / kBucketFirstMs) / std::log(kBucketRatio));
  return std::min(static_cast<size_t>(at), buckets - 1);
}

int64_t UpperEdgeMs(size_t bucket) {
  return static_cast<int64_t>(kBucketFirstMs * std::pow(kBucketRatio, static_cast<double>(bucket)));
}

std::optional<Difference> DifferenceOf(const char* signal, const PauseModel& model,
                                       int64_t now_ns) {
  const int64_t limit_ms = model.LimitMs();
  const int64_t lasted_ms = model.LastedMs(now_ns);
  if (limit_ms == 0 || lasted_ms <= limit_ms) return std::nullopt;
  return Difference{signal, lasted_ms, limit_ms, model.pauses(), model.Confidence()};
}

}  // namespace

void PauseModel::Moved(int64_t now_ns) {
  if (moved_ns_ > 0) {
    const int64_t ms = (now_ns - moved_ns_) / kNsPerMs;
    ++pauses_;
    ++counts_[BucketOf(ms, kBuckets)];
    longest_ms_ = std::max(longest_ms_, ms);
  }
  moved_ns_ = now_ns;
}

int64_t PauseModel::Percentile99Ms() const {
  const uint64_t below = pauses_ - pauses_ / 100;
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += counts_[i];
    if (seen >= below) return std::min(UpperEdgeMs(i), longest_ms_);
  }
  return longest_ms_;
}

int64_t PauseModel::LimitMs() const {
  if (pauses_ < kPausesMin) return 0;
  return std::max({kQuietFloorMs, 3 * Percentile99Ms(), longest_ms_ * 3 / 2});
}

int64_t PauseModel::LastedMs(int64_t now_ns) const {
  return moved_ns_ == 0 ? 0 : (now_ns - moved_ns_) / kNsPerMs;
}

double PauseModel::Confidence() const {
  return static_cast<double>(pauses_) / static_cast<double>(pauses_ + 1);
}

bool ActivityModel::Worked(const ActivityLook& look, int64_t now_ns) const {
  if (look.processes != last_->processes) return true;  // their sums cannot be compared
  const int64_t elapsed_ms = (now_ns - last_ns_) / kNsPerMs;
  const uint64_t cpu_ms = look.cpu_ms - std::min(look.cpu_ms, last_->cpu_ms);
  const uint64_t bytes = look.io_bytes - std::min(look.io_bytes, last_->io_bytes);
  return static_cast<int64_t>(100 * cpu_ms) >= kWorkPercentMin * elapsed_ms ||
         bytes >= kWorkBytesMin;
}

void ActivityModel::Look(const ActivityLook& look, int64_t now_ns) {
  if (last_.has_value()) {
    if (const int64_t gap_ns = now_ns - last_ns_; gap_ns > kLookGapMs * kNsPerMs) {
      for (PauseModel* model : {&work_, &output_, &steps_}) model->Skip(gap_ns);
    }
    if (Worked(look, now_ns)) work_.Moved(now_ns);
    if (look.output != last_->output) output_.Moved(now_ns);
    if (look.step != last_->step) steps_.Moved(now_ns);
  }
  last_ = look;
  last_ns_ = now_ns;
}

void ActivityModel::NewProcess() {
  last_.reset();
  for (PauseModel* model : {&work_, &output_, &steps_}) model->Forget();
}

std::optional<Difference> ActivityModel::Differs(int64_t now_ns) const {
  if (auto work = DifferenceOf("work", work_, now_ns)) return work;
  if (auto output = DifferenceOf("output", output_, now_ns)) return output;
  return DifferenceOf("steps", steps_, now_ns);
}

}  // namespace holdfast::agent
