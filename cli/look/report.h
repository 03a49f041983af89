// SPDX-License-Identifier: Apache-2.0
// What `holdfast look` prints. Pure. Bytes that a terminal would obey are shown as "?", bytes that
// are no UTF-8 as U+FFFD in JSON. No errors. Threads: any.
#ifndef HOLDFAST_CLI_LOOK_REPORT_H_
#define HOLDFAST_CLI_LOOK_REPORT_H_

#include <cstdint>
#include <string>

#include "cli/look/look.h"

namespace holdfast::cli {

struct LookedJob {
  std::string id;
  std::string name;
  std::string state;
  uint64_t attempt = 0;
  int64_t interval_ms = 0;
  JobLook look;
};

std::string LookText(const LookedJob& job);
// One object in one line; docs/cli.md lists its fields.
std::string LookJson(const LookedJob& job);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LOOK_REPORT_H_
