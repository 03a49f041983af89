// SPDX-License-Identifier: Apache-2.0
// The agent's connection to one keeper: packets in by callback, packets out through a bounded
// queue. The loop's thread only.
#ifndef HOLDFAST_AGENT_KEEPER_LINK_H_
#define HOLDFAST_AGENT_KEEPER_LINK_H_

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/event_loop.h"
#include "base/rank/message.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

inline constexpr size_t kKeeperQueuePacketsMax = 16384;

class KeeperLink {
 public:
  // A packet of the keeper; the handler takes the descriptors it wants to keep by Release().
  using OnPacket = std::function<void(const rank::Message&, std::string_view payload,
                                      std::vector<UniqueFd> fds)>;
  // The connection is over; never called after the destructor. The handler may destroy the link.
  using OnClosed = std::function<void(const std::string& why)>;

  // Connects without waiting. NOT_FOUND or UNAVAILABLE: nobody listens there (yet);
  // FAILED_PRECONDITION: who listens is not a keeper.
  static absl::StatusOr<std::unique_ptr<KeeperLink>> Connect(EventLoop* loop,
                                                             const std::string& socket_path,
                                                             OnPacket on_packet,
                                                             OnClosed on_closed);
  ~KeeperLink();
  KeeperLink(const KeeperLink&) = delete;
  KeeperLink& operator=(const KeeperLink&) = delete;

  pid_t pid() const { return pid_; }
  // Never blocks. Past kKeeperQueuePacketsMax packets the connection is given up.
  void Send(const rank::Message& message, std::string_view payload = {},
            const std::vector<int>& fds = {});

 private:
  struct Packet {
    rank::Message message;
    std::string payload;
    std::vector<UniqueFd> fds;
  };
  KeeperLink(EventLoop* loop, UniqueFd socket, pid_t pid, OnPacket on_packet, OnClosed on_closed);
  void OnEvents(uint32_t events);
  bool ReadAll();  // false: this object may be gone
  void Flush();
  void Close(const std::string& why);

  EventLoop* const loop_;
  UniqueFd socket_;
  const pid_t pid_;
  OnPacket on_packet_;
  OnClosed on_closed_;
  std::deque<Packet> queue_;
  std::shared_ptr<bool>
      alive_;  // the second owner is a callback on the stack, which must notice that `this` is gone
  uint64_t close_timer_ = 0;
  bool waiting_to_write_ = false;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_KEEPER_LINK_H_
