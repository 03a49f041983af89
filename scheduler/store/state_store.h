// SPDX-License-Identifier: Apache-2.0
// Where the scheduler's state lives. A batch is applied whole or not at all, and it is durable when
// Apply returns OK. What Apply reports as failed may or may not have been applied: the caller keeps
// its memory as it was and builds the batch anew.
//
// Keys are those of record_codec.h; the store puts the state's uuid before them, so that records of
// two states never mix. Threads: any thread; Apply calls are the caller's to order.
#ifndef HOLDFAST_SCHEDULER_STORE_STATE_STORE_H_
#define HOLDFAST_SCHEDULER_STORE_STATE_STORE_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::sched {

struct Batch {
  std::vector<std::pair<std::string, std::string>> puts;
  std::vector<std::string> deletes;
  bool empty() const { return puts.empty() && deletes.empty(); }
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  // The uuid of this state, made when the store was created.
  virtual const std::string& uuid() const = 0;
  virtual absl::Status Apply(const Batch& batch) = 0;
  virtual absl::StatusOr<std::optional<std::string>> Get(std::string_view key) const = 0;
  // Keys that begin with `prefix` and are greater than `after` (empty: from the first), in order,
  // until `visit` returns false.
  virtual absl::Status Scan(
      std::string_view prefix, std::string_view after,
      const std::function<bool(std::string_view key, std::string_view value)>& visit) const = 0;
};

// 32 hex digits, random.
std::string NewStateUuid();

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_STORE_STATE_STORE_H_
