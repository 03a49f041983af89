// SPDX-License-Identifier: Apache-2.0
// Which of this machine's addresses the other nodes of a run reach. Names are resolved as the
// system does it, with its own time limits.
#ifndef HOLDFAST_CLI_GUEST_NETWORK_H_
#define HOLDFAST_CLI_GUEST_NETWORK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/guest/plan.h"

namespace holdfast::cli {

// The address by which this machine speaks to `host`: no packet is sent. "10.0.0.7", or
// "[fd00::7]".
absl::StatusOr<std::string> LocalAddressTowards(const std::string& host);

// Where the scheduler listens: the plan's host when that is an address of this machine, else the
// address towards the machine where srun runs, else that of this machine's name. `local_address`:
// --local-addr, which wins. FAILED_PRECONDITION that names --local-addr when only loopback is
// found though the host is not loopback itself.
absl::StatusOr<std::string> ListenAddress(const GuestPlan& plan, const std::string& local_address);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_NETWORK_H_
