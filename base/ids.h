// SPDX-License-Identifier: Apache-2.0
// Identifiers. A job is a u64 printed "j-42" and never reused; an attempt counts from 1 and is
// raised by the scheduler alone; a rank is a global index in [0, world size).
#ifndef HOLDFAST_BASE_IDS_H_
#define HOLDFAST_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace holdfast {

struct JobId {
  uint64_t value = 0;  // 0 is no job
  auto operator<=>(const JobId&) const = default;
};

// "j-42".
std::string ToString(JobId id);
// Accepts exactly "j-" and a decimal u64 > 0.
absl::StatusOr<JobId> ParseJobId(std::string_view text);

// Job and node names: [A-Za-z0-9][A-Za-z0-9._-]{0,62}. Names become path components and words of
// command lines, so none begins with a dot or a dash.
bool IsValidName(std::string_view name);

// (job, attempt, step): names a snapshot or a checkpoint.
struct CheckpointId {
  JobId job;
  uint64_t attempt = 0;
  uint64_t step = 0;
  auto operator<=>(const CheckpointId&) const = default;
};

// "j-42@100.3" for step 100 of attempt 3.
std::string ToString(const CheckpointId& id);

}  // namespace holdfast

#endif  // HOLDFAST_BASE_IDS_H_
