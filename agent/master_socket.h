// SPDX-License-Identifier: Apache-2.0
// The socket behind MASTER_ADDR:MASTER_PORT of one attempt. It listens before the first rank
// starts, on a port that the kernel chose just now: nobody guesses one, nobody races for one, and
// a client that comes before the server process is up waits in the backlog.
#ifndef HOLDFAST_AGENT_MASTER_SOCKET_H_
#define HOLDFAST_AGENT_MASTER_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

struct MasterSocket {
  UniqueFd fd;  // listening, close-on-exec
  uint16_t port = 0;
};

// Bound to the address of `host` only (the first that can be bound), never to all addresses.
// UNAVAILABLE naming the host when it has no address of this machine, or with `for_other_nodes`
// only one that nobody else can reach (Debian gives a host's own name 127.0.1.1).
absl::StatusOr<MasterSocket> OpenMasterSocket(const std::string& host, bool for_other_nodes);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_MASTER_SOCKET_H_
