// SPDX-License-Identifier: Apache-2.0
// A state store in memory, for tests and the simulator. It can be told to die at a given write,
// before or after the write took effect, as a process does that is killed there: from then on every
// call fails, and what was stored is still to be read by a store that is opened on the same
// content.
#ifndef HOLDFAST_SCHEDULER_STORE_MEMORY_STORE_H_
#define HOLDFAST_SCHEDULER_STORE_MEMORY_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "scheduler/store/state_store.h"

namespace holdfast::sched {

struct MemoryContent {
  std::string uuid = NewStateUuid();
  std::map<std::string, std::string> records;
};

class MemoryStore final : public StateStore {
 public:
  // Shared with the test, which opens the next store on it after a "crash".
  explicit MemoryStore(std::shared_ptr<MemoryContent> content) : content_(std::move(content)) {}

  // Dies at the write number `write` (from 1, counted from now). `applied`: after the write took
  // effect, else before.
  void DieAtWrite(uint64_t write, bool applied);
  bool dead() const;
  uint64_t writes() const;

  const std::string& uuid() const override { return content_->uuid; }
  absl::Status Apply(const Batch& batch) override;
  absl::StatusOr<std::optional<std::string>> Get(std::string_view key) const override;
  absl::Status Scan(std::string_view prefix, std::string_view after,
                    const std::function<bool(std::string_view key, std::string_view value)>& visit)
      const override;

 private:
  const std::shared_ptr<MemoryContent> content_;
  mutable Mutex mutex_;
  uint64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t die_at_ ABSL_GUARDED_BY(mutex_) = 0;
  bool die_applied_ ABSL_GUARDED_BY(mutex_) = false;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_STORE_MEMORY_STORE_H_
