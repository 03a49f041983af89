// SPDX-License-Identifier: Apache-2.0
#include "agent/master_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int kBacklog = 4096;  // all ranks of a job may connect at the same moment

absl::StatusOr<uint16_t> PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return ErrnoStatus(errno, "getsockname");
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  constexpr uint32_t kNet = 127;
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == kNet;
}

bool IsNumeric(const std::string& host) {
  in6_addr six;
  in_addr four;
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &six) == 1;
}

}  // namespace

absl::StatusOr<MasterSocket> OpenMasterSocket(const std::string& host, bool for_other_nodes) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("MASTER_ADDR ", host, ": ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int last = EADDRNOTAVAIL;
  bool only_loopback = false;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    // Loopback by its own name is wanted: several nodes on one machine.
    if (for_other_nodes && IsLoopback(*a->ai_addr) && !IsNumeric(host) && host != "localhost") {
      only_loopback = true;
      continue;
    }
    MasterSocket out;
    out.fd = UniqueFd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!out.fd.valid() || ::bind(out.fd.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        ::listen(out.fd.get(), kBacklog) != 0) {
      last = errno;
      continue;
    }
    HF_ASSIGN_OR_RETURN(out.port, PortOf(out.fd.get()));
    return out;
  }
  if (only_loopback && last == EADDRNOTAVAIL) {
    return absl::UnavailableError(
        absl::StrCat("MASTER_ADDR ", host,
                     ": that name means only loopback here, which other nodes "
                     "cannot reach; start the agent with --listen ADDRESS:PORT"));
  }
  return absl::UnavailableError(
      absl::StrCat("MASTER_ADDR ", host, ": cannot listen there: ", std::strerror(last)));
}

}  // namespace holdfast::agent
