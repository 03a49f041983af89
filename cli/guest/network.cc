// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast::cli {
namespace {

constexpr char kAnyPort[] = "9";  // of a datagram that is never sent

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::string WithoutBrackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
}

absl::StatusOr<std::vector<Address>> Resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(WithoutBrackets(host).c_str(), kAnyPort, &hints, &found);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("the name ", host, ": ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<Address> out;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Address address;
    address.size = a->ai_addrlen;
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    out.push_back(address);
  }
  return out;
}

std::string Text(const Address& address) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address.get(), address.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) !=
      0)
    return "";
  return address.storage.ss_family == AF_INET6 ? absl::StrCat("[", text, "]") : text;
}

bool IsLoopback(const Address& address) {
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(
        &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
}

// Binding says whether it is one of this machine.
bool IsOurs(Address address) {
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
  }
  const UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.valid() && ::bind(fd.get(), address.get(), address.size) == 0;
}

bool SaysLoopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "[::1]" || host == "::1";
}

// The first address of `host` on this machine that others reach; empty: none.
std::string OwnAddress(const std::string& host) {
  const absl::StatusOr<std::vector<Address>> addresses = Resolve(host);
  if (!addresses.ok()) return "";
  for (const Address& address : *addresses) {
    if (IsOurs(address) && (SaysLoopback(host) || !IsLoopback(address))) return Text(address);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const std::string& host) {
  HF_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(host));
  int last = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    const UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Address own;
    own.size = sizeof own.storage;
    if (fd.valid() && ::connect(fd.get(), address.get(), address.size) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0)
      return Text(own);
    last = errno;
  }
  return ErrnoStatus(last, absl::StrCat("no way from this machine to ", host));
}

absl::StatusOr<std::string> ListenAddress(const GuestPlan& plan, const std::string& local_address) {
  if (!local_address.empty()) return local_address;
  if (!plan.host.empty()) {
    if (std::string own = OwnAddress(plan.host); !own.empty()) return own;
  }
  if (!plan.launch_address.empty()) {
    absl::StatusOr<std::string> own = LocalAddressTowards(plan.launch_address);
    if (own.ok()) return own;
  }
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) == 0) {
    if (std::string own = OwnAddress(name); !own.empty()) return own;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no address of this machine is found by which the other nodes reach it (",
                   plan.host.empty() ? name : plan.host,
                   " is loopback or of another machine); give it with --local-addr"));
}

}  // namespace holdfast::cli
