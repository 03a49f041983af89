// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/memory_store.h"

#include <random>

#include "absl/strings/str_format.h"

namespace holdfast::sched {

std::string NewStateUuid() {
  std::random_device random;
  std::string out;
  for (int i = 0; i < 4; ++i) out += absl::StrFormat("%08x", static_cast<uint32_t>(random()));
  return out;
}

void MemoryStore::DieAtWrite(uint64_t write, bool applied) {
  MutexLock lock(mutex_);
  die_at_ = writes_ + write;
  die_applied_ = applied;
}

bool MemoryStore::dead() const {
  MutexLock lock(mutex_);
  return dead_;
}

uint64_t MemoryStore::writes() const {
  MutexLock lock(mutex_);
  return writes_;
}

absl::Status MemoryStore::Apply(const Batch& batch) {
  MutexLock lock(mutex_);
  if (dead_) return absl::UnavailableError("the store is dead");
  ++writes_;
  const bool dies = die_at_ != 0 && writes_ >= die_at_;
  if (!dies || die_applied_) {
    for (const auto& [key, value] : batch.puts) content_->records[key] = value;
    for (const std::string& key : batch.deletes) content_->records.erase(key);
  }
  if (!dies) return absl::OkStatus();
  dead_ = true;
  return absl::UnavailableError("the store died at this write");
}

absl::StatusOr<std::optional<std::string>> MemoryStore::Get(std::string_view key) const {
  MutexLock lock(mutex_);
  if (dead_) return absl::UnavailableError("the store is dead");
  const auto it = content_->records.find(std::string(key));
  if (it == content_->records.end()) return std::optional<std::string>();
  return std::optional<std::string>(it->second);
}

absl::Status MemoryStore::Scan(
    std::string_view prefix, std::string_view after,
    const std::function<bool(std::string_view, std::string_view)>& visit) const {
  MutexLock lock(mutex_);
  if (dead_) return absl::UnavailableError("the store is dead");
  auto it = after.empty() ? content_->records.lower_bound(std::string(prefix))
                          : content_->records.upper_bound(std::string(after));
  for (; it != content_->records.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    if (!visit(it->first, it->second)) break;
  }
  return absl::OkStatus();
}

}  // namespace holdfast::sched
