// SPDX-License-Identifier: Apache-2.0
// A scheduler and an agent that belong to the calling process and end with it: those of
// `holdfast run`. The supervisor of `up` runs them in a process of its own; a thread here sees to
// it that the supervisor lives. Whatever is killed, nothing stays behind:
//
//   killed                    what happens
//   the supervisor            it is started again; its daemons come back and ranks go on
//   the calling process       the supervisor cancels the jobs and ends (the owner's pipe tells it)
//   both                      each keeper kills its ranks 15 s later (the same pipe)
#ifndef HOLDFAST_CLI_UP_OWN_CLUSTER_H_
#define HOLDFAST_CLI_UP_OWN_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cli/stop_flag.h"
#include "cli/up/background.h"
#include "cli/up/own_state_dir.h"

namespace holdfast::cli {

class OwnCluster {
 public:
  // Returns once scheduler and agent answer. It forks: call it before any thread is started, with
  // the signals blocked that are not to end it.
  static absl::StatusOr<std::unique_ptr<OwnCluster>> Start(const OwnStateDir& state);
  ~OwnCluster();  // as End(true)
  OwnCluster(const OwnCluster&) = delete;
  OwnCluster& operator=(const OwnCluster&) = delete;

  // Starts the thread that continues a stopped supervisor and starts a killed one again.
  // `on_given_up` is called in it, at most once, when that has failed too often.
  void Watch(std::function<void()> on_given_up);
  // Why it was given up; OK while it was not.
  absl::Status GivenUp() const;

  // Ends the daemons, then whatever is left by force. `cancel`: in order, by the scheduler (TERM,
  // 10 s, KILL); else ranks are killed. Returns when all are gone, in kEndMsMax at the latest.
  void End(bool cancel);

 private:
  OwnCluster(Background background, std::string state);
  void Run();
  bool LookAfter();  // false: nothing is left to look after
  void LookForRoom();
  bool StartAgain();
  void GiveUp(absl::Status why);

  const std::string state_;
  Background background_;  // its pid: of the thread while that runs; 0: no supervisor runs
  int restarts_ = 0;
  int64_t started_ns_ = 0;
  bool was_stopped_ = false;
  bool full_told_ = false;
  std::function<void()> on_given_up_;
  std::thread thread_;
  StopFlag stop_;
  mutable Mutex mutex_;
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_OWN_CLUSTER_H_
