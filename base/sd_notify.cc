// SPDX-License-Identifier: Apache-2.0
#include "base/sd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"

namespace holdfast {

bool SdNotify(std::string_view message) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  return ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                  reinterpret_cast<sockaddr*>(&address),
                  size) == static_cast<ssize_t>(message.size());
}

int64_t WatchdogIntervalMs() {
  const char* value = std::getenv("WATCHDOG_USEC");
  if (value == nullptr) return 0;
  const long long us = std::atoll(value);
  return us > 0 ? us / 2000 : 0;
}

}  // namespace holdfast
