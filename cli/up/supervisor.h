// SPDX-License-Identifier: Apache-2.0
// The loop of `holdfast up`: starts the scheduler, then the agents, keeps them running by
// ChildPolicy, and ends them. One thread; it learns of deaths and stops by SIGCHLD (signalfd), of
// life by the notify socket, of wishes by SIGINT and SIGTERM:
//
//   SIGTERM          ends the daemons; keepers and ranks go on (`holdfast down --leave-ranks`)
//   SIGINT, SIGHUP   cancels the jobs first (a child runs `holdfast down --jobs-only`, so that the
//   loop goes on supervising), then as
//                    SIGTERM; a second one skips the waiting. SIGHUP is ignored by a daemonised up.
#ifndef HOLDFAST_CLI_UP_SUPERVISOR_H_
#define HOLDFAST_CLI_UP_SUPERVISOR_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/up/child_policy.h"
#include "cli/up/run_dir.h"

namespace holdfast::cli {

struct DaemonSpec {
  std::string name;               // "scheduler", "agent-n0"
  std::vector<std::string> argv;  // argv[0] is a path
  bool gets_owner = false;        // inherits SupervisorConfig::caller_fd as kInheritedFd
};

struct SupervisorConfig {
  std::vector<DaemonSpec>
      daemons;  // daemons[0] is ready before the others start, and ends after them
  std::vector<std::string> cancel_argv;  // what SIGINT runs first
  bool hang_up_ends = false;             // SIGHUP counts as SIGINT
  int alive_fd = -1;   // a pipe's write end: when its reader goes before all is ready, give up
  int caller_fd = -1;  // a pipe's read end: when its writer goes, the same as SIGINT
  std::function<void()> on_ready;  // once, when every daemon is ready
  std::function<void(const std::string&)> say;
};

// "exited with code 3", or for -9 "was killed by signal 9".
std::string HowItEnded(int exit_code);

class Supervisor {
 public:
  Supervisor(const RunDir* run_dir, SupervisorConfig config);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Blocks the signals, makes the notify socket, runs until told to end. OK when that was asked
  // for; else what made it give up, with the daemon's own last words. exit_code() goes with it.
  absl::Status Run();
  int exit_code() const { return exit_code_; }

 private:
  enum class Phase { kStarting, kUp, kCancelling, kStoppingRest, kStoppingFirst, kEnded };
  struct Child {
    DaemonSpec spec;
    ChildPolicy policy;
    pid_t pid = 0;
  };

  absl::Status Open();
  absl::Status OpenNotifySocket();
  void AllowForLateness();
  void ReadNotifications();
  void ReadSignals();
  void Reap();
  void ReapOne(Child* child);
  void ReapCanceller();
  void Act(Child* child);
  void Carry(Child* child, const ChildAction& action);
  void Start(Child* child);
  void MovePhase();
  void BeginCancel();
  void StopDaemons();
  void GiveUp(absl::Status why, int exit_code);
  bool AllReady() const;
  bool NoneRuns() const;  // of daemons[1...]
  void Sleep();
  Child* FindByPid(pid_t pid);

  const RunDir* const run_dir_;
  SupervisorConfig config_;
  SystemClock clock_;
  std::vector<Child> children_;
  UniqueFd signals_;
  UniqueFd notify_;
  Phase phase_ = Phase::kStarting;
  pid_t canceller_ = 0;
  int64_t cancel_end_ns_ = 0;
  int64_t now_ns_ = 0;
  int64_t wake_ns_ = 0;  // when Sleep should return at the latest
  int64_t next_log_check_ns_ = 0;
  absl::Status failure_;
  int exit_code_ = 0;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_SUPERVISOR_H_
