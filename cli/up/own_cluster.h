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
#include "cli/up/background.h"

namespace holdfast::cli {

// A directory for one run alone.
class OwnStateDir {
 public:
  // `wanted`, made absolute, or when it is empty a fresh directory below TMPDIR or /tmp.
  static absl::StatusOr<OwnStateDir> Make(const std::string& wanted);
  const std::string& path() const { return path_; }
  bool temporary() const { return temporary_; }
  // Removes a temporary one, or says where it is when `keep`.
  void Settle(bool keep);

 private:
  std::string path_;
  bool temporary_ = false;
};

// Removes `state` and all in it; a hint when that fails.
void RemoveStateDir(const std::string& state);

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
  OwnCluster(Background background, std::string state, bool temporary);
  void Run();
  bool LookAfter();  // false: nothing is left to look after
  void LookForRoom();
  bool StartAgain();
  void GiveUp(absl::Status why);
  bool WaitMs(int64_t ms);  // true: it is to end

  const std::string state_;
  const bool temporary_;
  Background background_;  // its pid: of the thread while that runs; 0: no supervisor runs
  int restarts_ = 0;
  int64_t started_ns_ = 0;
  bool was_stopped_ = false;
  bool full_told_ = false;
  std::function<void()> on_given_up_;
  std::thread thread_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_OWN_CLUSTER_H_
