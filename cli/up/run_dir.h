// SPDX-License-Identifier: Apache-2.0
// The files of `holdfast up` in its state directory:
//
//   <state>/run/up.lock            held by the running up (flock)
//   <state>/run/up.pid             its pid;  <state>/run/<daemon>.pid  those of its daemons
//   <state>/run/up.log             what a daemonised up says;  <state>/run/<daemon>.log  what its
//   daemons say <state>/run/notify.sock        where daemons send READY=1 and WATCHDOG=1
//   <state>/run/hold/<daemon>      for drills: while this file exists, a daemon that died is not
//   started again
#ifndef HOLDFAST_CLI_UP_RUN_DIR_H_
#define HOLDFAST_CLI_UP_RUN_DIR_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace holdfast::cli {

inline constexpr uint64_t kStateFreeBytesMin = 16ull << 20;
inline constexpr int64_t kDaemonLogBytesMax = 64 << 20;  // then it moves to <name>.log.1

class RunDir {
 public:
  explicit RunDir(std::string state);

  const std::string& state() const { return state_; }
  std::string PidFile(const std::string& name) const;
  std::string HoldDir() const;
  std::string LogFile(const std::string& name) const;
  std::string NotifySocket() const;
  bool Held(const std::string& name) const;
  // FAILED_PRECONDITION naming a file that would keep a daemon down from the start.
  absl::Status CheckNothingIsHeld() const;

  // Makes the directories and proves that they can be written: one clear error for a path too long,
  // no permission, no space.
  absl::Status Prepare(int nodes) const;
  // ALREADY_EXISTS (exit code 4) names the pid of the up that holds it.
  absl::StatusOr<UniqueFd> Lock() const;
  // The pid of the up that runs here, 0 for none.
  absl::StatusOr<pid_t> RunningUp() const;

  absl::Status WritePid(const std::string& name, pid_t pid) const;
  void RemovePid(const std::string& name) const;
  absl::StatusOr<UniqueFd> OpenLog(const std::string& name) const;
  // Keeps a log under its limit by moving what is there to <name>.log.1; the writer appends, so it
  // goes on at 0.
  void BoundLog(const std::string& name) const;
  // The last lines of a log, for an error message.
  std::string LogTail(const std::string& name, size_t lines) const;

 private:
  const std::string state_;
  const std::string run_;
};

// A keeper that runs under a node directory of `state`.
struct KeeperProcess {
  pid_t pid = 0;
  std::string directory;  // <state>/nodes/n0/keepers/j-42
};
std::vector<KeeperProcess> LiveKeepers(const std::string& state);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_RUN_DIR_H_
