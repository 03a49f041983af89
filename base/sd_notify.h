// SPDX-License-Identifier: Apache-2.0
// systemd's notification protocol (sd_notify(3)): one datagram to $NOTIFY_SOCKET. `holdfast up`
// speaks the same protocol, so a daemon behaves alike under both. No-ops when NOTIFY_SOCKET is not
// set.
#ifndef HOLDFAST_BASE_SD_NOTIFY_H_
#define HOLDFAST_BASE_SD_NOTIFY_H_

#include <cstdint>
#include <string_view>

namespace holdfast {

// E.g. SdNotify("READY=1\nSTATUS=serving"). False when there is nobody to tell or it could not be
// sent.
bool SdNotify(std::string_view message);

// How often to send WATCHDOG=1 (half of WATCHDOG_USEC), or 0 when nobody asked for it.
int64_t WatchdogIntervalMs();

}  // namespace holdfast

#endif  // HOLDFAST_BASE_SD_NOTIFY_H_
