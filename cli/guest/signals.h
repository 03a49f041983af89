// SPDX-License-Identifier: Apache-2.0
// USR1 and USR2 at a task of a run over several nodes: often "the time is nearly up". Slurm sends
// them to every process of a step, so the ranks have them already and here they are only survived;
// elsewhere they reach this process alone and are passed on to the ranks of this node.
#ifndef HOLDFAST_CLI_GUEST_SIGNALS_H_
#define HOLDFAST_CLI_GUEST_SIGNALS_H_

#include <signal.h>

#include <atomic>
#include <thread>

#include "cli/guest/daemons.h"

namespace holdfast::cli {

// Before anything is started, so that no such signal ends this process while it starts.
void SurviveUserSignals();

// Has a thread of its own; one at a time in a process. Make it after InterruptGuard and before the
// first channel: gRPC's threads must inherit the blocked signals.
class RankSignals {
 public:
  RankSignals(const GuestDaemons& daemons, bool pass_on);
  ~RankSignals();
  RankSignals(const RankSignals&) = delete;
  RankSignals& operator=(const RankSignals&) = delete;

 private:
  const GuestDaemons& daemons_;
  const bool pass_on_;
  sigset_t signals_{}, before_{};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_SIGNALS_H_
