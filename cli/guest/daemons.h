// SPDX-License-Identifier: Apache-2.0
// What one task of a run over several nodes has beside itself: the supervisor of `up` in a child,
// under it the agent, and on the first node the scheduler. They stay children of this process, so
// that the workload manager sees them in its step, and end with it, however it ends.
#ifndef HOLDFAST_CLI_GUEST_DAEMONS_H_
#define HOLDFAST_CLI_GUEST_DAEMONS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/guest/plan.h"
#include "cli/up/background.h"
#include "cli/up/own_state_dir.h"
#include "cli/up/supervisor.h"

namespace holdfast::cli {

// A directory of this task's own, of mode 0700.
class GuestState {
 public:
  // Below `wanted` (--state) one for this run and node, else a temporary one.
  static absl::StatusOr<GuestState> Make(const std::string& wanted, const GuestPlan& plan);
  const std::string& path() const { return dir_.path(); }
  std::string KeyFile() const { return path() + "/run.key"; }
  std::string SchedulerSocket() const { return path() + "/scheduler.sock"; }
  // A temporary one is removed, or named when `failed`.
  void Settle(bool failed) const;

 private:
  OwnStateDir dir_;
};

struct GuestAddresses {
  std::string scheduler;  // HOST:PORT
  std::string own_host;   // where this node's agent listens
};

// The scheduler (on the head) and the agent of this task; the key stands in state.KeyFile().
absl::StatusOr<std::vector<DaemonSpec>> GuestDaemonsOf(const GuestState& state,
                                                       const GuestPlan& plan,
                                                       const GuestAddresses& addresses);

class GuestDaemons {
 public:
  // Returns once all are ready; errors carry their last words. It forks: call it before any thread
  // is started.
  static absl::StatusOr<std::unique_ptr<GuestDaemons>> Start(const GuestState& state,
                                                             std::vector<DaemonSpec> daemons);
  ~GuestDaemons();  // ends them, and kills what is left of keepers and ranks
  GuestDaemons(const GuestDaemons&) = delete;
  GuestDaemons& operator=(const GuestDaemons&) = delete;

  // The daemons need their supervisor; without it this node has no part in the run any more.
  bool Alive() const;
  // SIGUSR1 or SIGUSR2 for every rank of this node.
  void SignalRanks(int signal) const;

 private:
  GuestDaemons(std::string state, Background background)
      : state_(std::move(state)), background_(std::move(background)) {}

  const std::string state_;
  Background background_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_GUEST_DAEMONS_H_
