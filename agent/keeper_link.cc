// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper_link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int kPacketsPerTurn = 256;  // one keeper must not starve the others

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperLink>> KeeperLink::Connect(EventLoop* loop,
                                                                const std::string& socket_path,
                                                                OnPacket on_packet,
                                                                OnClosed on_closed) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(socket_path, ": path of a socket has at most ",
                                                   sizeof address.sun_path - 1,
                                                   " bytes; use a shorter state directory"));
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(socket_path, ": does not exist"));
    return absl::UnavailableError(absl::StrCat(socket_path, ": ", std::strerror(errno)));
  }
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return ErrnoStatus(errno, "SO_PEERCRED");
  const std::string comm = ReadComm(peer.pid);
  if (comm != kKeeperComm) {
    return absl::FailedPreconditionError(absl::StrCat(socket_path, ": process ", peer.pid, " (",
                                                      comm, ") listens there, not a keeper"));
  }
  std::unique_ptr<KeeperLink> link(new KeeperLink(loop, std::move(socket), peer.pid,
                                                  std::move(on_packet), std::move(on_closed)));
  KeeperLink* raw = link.get();
  HF_RETURN_IF_ERROR(
      loop->Watch(raw->socket_.get(), EPOLLIN, [raw](uint32_t events) { raw->OnEvents(events); }));
  return link;
}

KeeperLink::KeeperLink(EventLoop* loop, UniqueFd socket, pid_t pid, OnPacket on_packet,
                       OnClosed on_closed)
    : loop_(loop),
      socket_(std::move(socket)),
      pid_(pid),
      on_packet_(std::move(on_packet)),
      on_closed_(std::move(on_closed)),
      alive_(std::make_shared<bool>(true)) {}

KeeperLink::~KeeperLink() {
  *alive_ = false;
  if (close_timer_ != 0) loop_->Cancel(close_timer_);
  if (socket_.valid()) loop_->Unwatch(socket_.get());
}

void KeeperLink::OnEvents(uint32_t events) {
  if ((events & EPOLLIN) != 0 && !ReadAll()) return;
  if ((events & EPOLLOUT) != 0) Flush();
  if ((events & (EPOLLHUP | EPOLLERR)) != 0 && (events & EPOLLIN) == 0)
    Close("the keeper closed the connection");
}

bool KeeperLink::ReadAll() {
  const std::shared_ptr<bool> alive = alive_;
  std::string payload(rank::kPayloadBytesMax, '\0');
  for (int i = 0; i < kPacketsPerTurn && *alive && socket_.valid(); ++i) {
    rank::Message message;
    rank::Descriptors descriptors;
    const int got =
        rank::ReceiveMessage(socket_.get(), &message, payload.data(), payload.size(), &descriptors);
    std::vector<UniqueFd> fds;
    for (int k = 0; k < descriptors.count; ++k) fds.emplace_back(descriptors.fds[k]);
    if (got == -EAGAIN) return true;
    if (got == -EINTR) continue;
    if (got <= 0) {
      Close(got == 0 ? "the keeper closed the connection"
                     : absl::StrCat("reading from the keeper: ", std::strerror(-got)));
      return false;
    }
    on_packet_(message, std::string_view(payload.data(), message.payload_bytes), std::move(fds));
  }
  return *alive;
}

void KeeperLink::Send(const rank::Message& message, std::string_view payload,
                      const std::vector<int>& fds) {
  if (!socket_.valid()) return;
  rank::Message out = message;
  out.payload_bytes = static_cast<uint32_t>(payload.size());
  if (queue_.empty()) {
    const int sent = rank::SendMessage(socket_.get(), out, payload.data(), fds.data(),
                                       static_cast<int>(fds.size()));
    if (sent == 0) return;
    if (sent != -EAGAIN) return;  // the end of file that follows tells
  }
  Packet packet{out, std::string(payload), {}};
  for (const int fd : fds) packet.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  queue_.push_back(std::move(packet));
  if (queue_.size() > kKeeperQueuePacketsMax) {
    // Not from here: the caller is in the middle of something.
    if (close_timer_ == 0)
      close_timer_ = loop_->At(0, [this] { Close("the keeper does not read"); });
    return;
  }
  if (waiting_to_write_) return;
  waiting_to_write_ = true;
  const int socket = socket_.get();
  loop_->Unwatch(socket);
  const absl::Status watched =
      loop_->Watch(socket, EPOLLIN | EPOLLOUT, [this](uint32_t events) { OnEvents(events); });
  if (!watched.ok() && close_timer_ == 0)
    close_timer_ = loop_->At(0, [this] { Close("cannot watch the connection"); });
}

void KeeperLink::Flush() {
  while (!queue_.empty()) {
    Packet& packet = queue_.front();
    std::vector<int> fds;
    for (const UniqueFd& fd : packet.fds) fds.push_back(fd.get());
    const int sent = rank::SendMessage(socket_.get(), packet.message, packet.payload.data(),
                                       fds.data(), static_cast<int>(fds.size()));
    if (sent == -EAGAIN) return;
    queue_.pop_front();
  }
  waiting_to_write_ = false;
  const int socket = socket_.get();
  loop_->Unwatch(socket);
  const absl::Status watched =
      loop_->Watch(socket, EPOLLIN, [this](uint32_t events) { OnEvents(events); });
  if (!watched.ok()) Close("cannot watch the connection");
}

void KeeperLink::Close(const std::string& why) {
  if (!socket_.valid()) return;
  if (close_timer_ != 0) loop_->Cancel(std::exchange(close_timer_, 0));
  loop_->Unwatch(socket_.get());
  socket_.Reset();
  const OnClosed on_closed = on_closed_;
  on_closed(why);
}

}  // namespace holdfast::agent
