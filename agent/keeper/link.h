// SPDX-License-Identifier: Apache-2.0
// One accepted connection with its bounded queue of packets to send. Never blocks; a peer that does
// not read, or writes nonsense, ends as a dead link, which the owner removes. Single-threaded.
#ifndef HOLDFAST_AGENT_KEEPER_LINK_H_
#define HOLDFAST_AGENT_KEEPER_LINK_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/rank/message.h"
#include "base/unique_fd.h"

namespace holdfast::keeper {

inline constexpr size_t kQueueBytesMax = 8 << 20;  // unsent bytes of one link; more and it is cut
inline constexpr size_t kQueuePacketsMax = 8192;

class Link {
 public:
  enum Kind { kNew, kRank, kAgent };

  Link(UniqueFd socket, uint32_t link_id, pid_t pid, uid_t uid)
      : id(link_id), peer_pid(pid), peer_uid(uid), socket_(std::move(socket)) {}
  ~Link() { ClearQueue(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int fd() const { return socket_.get(); }
  bool dead() const { return dead_; }
  void Kill() { dead_ = true; }
  bool wants_to_write() const { return !queue_.empty(); }
  size_t queued_bytes() const { return queued_bytes_; }

  void Send(const rank::Message& message, const std::string& payload = "",
            std::initializer_list<int> fds = {});
  void SendError(const rank::Message& to, int code, const std::string& text);
  void Flush();  // when the socket takes more

  const uint32_t id;
  const pid_t peer_pid;
  const uid_t peer_uid;
  Kind kind = kNew;
  // Rank links only.
  uint32_t rank = 0;
  uint64_t attempt = 0;
  bool unanswered = false;      // a store request was forwarded; a newer one replaces it
  uint32_t newest_request = 0;  // its number
  bool must_resend = false;     // a store request needs an agent and none is there

 private:
  struct Packet {
    rank::Message message;
    std::string payload;
    int fds[rank::kDescriptorsMax];
    int fd_count = 0;
  };
  void Queue(const rank::Message& message, const std::string& payload, const int* fds,
             int fd_count);
  static void CloseFds(Packet* packet);
  void ClearQueue();

  UniqueFd socket_;
  std::deque<Packet> queue_;
  size_t queued_bytes_ = 0;
  bool dead_ = false;
};

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_LINK_H_
