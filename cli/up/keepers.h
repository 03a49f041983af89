// SPDX-License-Identifier: Apache-2.0
// Ending the keepers of a state directory by force: what is left when nobody is there to do it in
// order.
#ifndef HOLDFAST_CLI_UP_KEEPERS_H_
#define HOLDFAST_CLI_UP_KEEPERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cli/up/run_dir.h"

namespace holdfast::cli {

inline constexpr int64_t kKeepersGoneMs = 10'000;

// True when no keeper is left before the deadline.
bool WaitForKeepers(const std::string& state, int64_t wait_ms);

// Kills every keeper, which takes its ranks with it, and waits for their end. `tell` hears of each
// before; it may be empty. Returns how many there were.
size_t KillKeepers(const std::string& state, const std::function<void(const KeeperProcess&)>& tell);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_KEEPERS_H_
