// SPDX-License-Identifier: Apache-2.0
#include "base/fault_point.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>

namespace holdfast {
namespace {

struct Armed {
  std::string name;
  std::atomic<int> remaining{0};
  bool on = false;

  Armed() {
    const char* value = std::getenv("HOLDFAST_KILL_POINT");
    if (value == nullptr || *value == '\0') return;
    name = value;
    remaining = 1;
    if (const size_t hash = name.find('#'); hash != std::string::npos) {
      remaining = std::atoi(name.c_str() + hash + 1);
      name.resize(hash);
    }
    on = true;
  }
};

Armed& State() {
  static Armed* armed =
      new Armed;  // never destroyed: reachable from any thread until the process ends
  return *armed;
}

}  // namespace

bool KillPointsArmed() { return State().on; }

void KillPointReached(const char* name) {
  Armed& armed = State();
  if (armed.name == name && armed.remaining.fetch_sub(1) == 1) ::raise(SIGKILL);
}

}  // namespace holdfast
