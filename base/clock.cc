// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace holdfast {
namespace {

int64_t ReadClockNs(clockid_t id) {
  timespec ts{};
  ::clock_gettime(id, &ts);
  return static_cast<int64_t>(ts.tv_sec) * kNsPerSec + ts.tv_nsec;
}

}  // namespace

int64_t SystemClock::MonoNs() const { return ReadClockNs(CLOCK_MONOTONIC); }
int64_t SystemClock::WallNs() const { return ReadClockNs(CLOCK_REALTIME); }

}  // namespace holdfast
