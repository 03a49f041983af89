// SPDX-License-Identifier: Apache-2.0
// What a socket is connected to, by its inode: from /proc/PID/net/{tcp,tcp6,udp,udp6,unix}, which
// show the network namespace of that process. A Unix socket's peer is not among it, only the path
// that it or its listener was bound to.
//
// Errors: lines that make no sense are left out; what is not found is nullopt. Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_SOCKETS_H_
#define HOLDFAST_BASE_INSPECT_SOCKETS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/inspect/proc_fs.h"

namespace holdfast::inspect {

// "tcp 127.0.0.1:80 -> 10.0.0.7:41000 (ESTABLISHED)" for the line with `inode` in the text of a
// table of `protocol`: "tcp", "tcp6", "udp", "udp6".
std::optional<std::string> FindInetSocket(const std::string& table, const std::string& protocol,
                                          uint64_t inode);
// "unix /run/x.sock", "unix @abstract", "unix (no name)".
std::optional<std::string> FindUnixSocket(const std::string& table, uint64_t inode);

// Among all tables that `pid` sees; nullopt also for kinds that are in none of them (netlink, ...).
std::optional<std::string> SocketOf(const ProcFs& proc, pid_t pid, uint64_t inode);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_SOCKETS_H_
