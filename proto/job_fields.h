// SPDX-License-Identifier: Apache-2.0
// The ranges of a job's number fields: one table for the YAML reader (which knows lines) and the
// validator (which does not). Private to proto/.
#ifndef HOLDFAST_PROTO_JOB_FIELDS_H_
#define HOLDFAST_PROTO_JOB_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::proto {

enum class NumberKind { kCount, kDurationMs, kDurationS, kBytes };

struct NumberField {
  const char* name;  // JobSpec's field
  NumberKind kind;
  int64_t low;  // in the field's own unit
  int64_t high;
  bool zero_is_unset;  // 0 in a message means "not given"; a file leaves the field out instead
};

// Null when `name` is not a number field of a job.
const NumberField* FindNumberField(std::string_view name);

// "a whole number from 1 to 4096", "a duration from 1s to 1d, such as 90s or 10m", "a size from
// 64KiB to 1TiB, such as 64MiB".
std::string Allowed(const NumberField& field);
// The value as the field's kind is written: 5000, 90s, 64MiB.
std::string Shown(const NumberField& field, int64_t value);

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_JOB_FIELDS_H_
