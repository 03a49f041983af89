// SPDX-License-Identifier: Apache-2.0
#include "cli/up/keepers.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace holdfast::cli {

bool WaitForKeepers(const std::string& state, int64_t wait_ms) {
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + wait_ms * kNsPerMs;
  while (true) {
    const std::vector<KeeperProcess> keepers = LiveKeepers(state);
    if (keepers.empty()) return true;
    const int64_t left_ms = (end - clock.MonoNs()) / kNsPerMs;
    if (left_ms <= 0) return false;
    const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, keepers[0].pid, 0)));
    pollfd gone{fd.get(), POLLIN, 0};
    if (fd.valid()) ::poll(&gone, 1, static_cast<int>(left_ms));
  }
}

size_t KillKeepers(const std::string& state,
                   const std::function<void(const KeeperProcess&)>& tell) {
  const std::vector<KeeperProcess> keepers = LiveKeepers(state);
  for (const KeeperProcess& keeper : keepers) {
    if (tell) tell(keeper);
    ::kill(keeper.pid, SIGKILL);
  }
  if (!keepers.empty()) WaitForKeepers(state, kKeepersGoneMs);
  return keepers.size();
}

}  // namespace holdfast::cli
