// SPDX-License-Identifier: Apache-2.0
// One keeper as the agent sees it, from the fork or the adoption to its death: started, connected
// to, connected to again when only the connection broke, buried when the process is gone. The
// loop's thread only.
#ifndef HOLDFAST_AGENT_KEEPER_HANDLE_H_
#define HOLDFAST_AGENT_KEEPER_HANDLE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "agent/event_loop.h"
#include "agent/keeper_link.h"
#include "agent/keeper_process.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

class KeeperHandle {
 public:
  // Called on the loop's thread, never from inside a call of this class.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void KeeperConnected() = 0;  // says kAttach now
    virtual void KeeperPacket(const rank::Message& message, std::string_view payload,
                              std::vector<UniqueFd> fds) = 0;
    // The process is gone. `connected`: it once could be talked to; otherwise it never came up and
    // `why` says what is known.
    virtual void KeeperGone(bool connected, const std::string& why) = 0;
  };

  KeeperHandle(EventLoop* loop, KeeperCommand command, Owner* owner);
  ~KeeperHandle();
  KeeperHandle(const KeeperHandle&) = delete;
  KeeperHandle& operator=(const KeeperHandle&) = delete;

  // Adopts the keeper that lives in the directory, or starts one. Only while not running().
  absl::Status Start();
  // Adopts only. False when no keeper lives in the directory.
  bool Adopt();

  bool running() const { return pid_ != 0; }
  bool connected() const { return link_ != nullptr; }
  pid_t pid() const { return pid_; }
  // Called with each beat. A keeper that stays stopped (SIGSTOP) is continued: its ranks go on, but
  // nobody sees their ends and nothing drains their output.
  void ContinueIfStopped();
  void Send(const rank::Message& message, std::string_view payload = {},
            const std::vector<int>& fds = {});

 private:
  absl::Status Follow(pid_t pid, bool child);
  void Connect();
  void OnExit();
  void ScheduleConnect();

  EventLoop* const loop_;
  const KeeperCommand command_;
  Owner* const owner_;
  pid_t pid_ = 0;
  bool child_ = false;  // of this agent: to be reaped
  bool was_connected_ = false;
  UniqueFd pidfd_;
  std::unique_ptr<KeeperLink> link_;
  std::unique_ptr<KeeperLink>
      closed_link_;  // destroyed later: its own callback may be on the stack
  uint64_t timer_ = 0;
  int64_t connect_since_ns_ = 0;
  bool complained_ = false;
  int stopped_looks_ = 0;  // in a row
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_KEEPER_HANDLE_H_
