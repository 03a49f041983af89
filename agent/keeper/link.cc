// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/link.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace holdfast::keeper {

void Link::CloseFds(Packet* packet) {
  for (int i = 0; i < packet->fd_count; ++i) close(packet->fds[i]);
  packet->fd_count = 0;
}

void Link::ClearQueue() {
  for (Packet& packet : queue_) CloseFds(&packet);
  queue_.clear();
  queued_bytes_ = 0;
}

void Link::Queue(const rank::Message& message, const std::string& payload, const int* fds,
                 int fd_count) {
  Packet packet;
  packet.message = message;
  packet.payload = payload;
  for (int i = 0; i < fd_count; ++i) {
    const int copy =
        fcntl(fds[i], F_DUPFD_CLOEXEC, 3);  // the original may be closed before the packet goes out
    if (copy < 0) {
      CloseFds(&packet);
      dead_ = true;
      return;
    }
    packet.fds[packet.fd_count++] = copy;
  }
  queued_bytes_ += sizeof(message) + payload.size();
  queue_.push_back(std::move(packet));
  if (queued_bytes_ > kQueueBytesMax || queue_.size() > kQueuePacketsMax) dead_ = true;
}

void Link::Send(const rank::Message& message, const std::string& payload,
                std::initializer_list<int> fds) {
  if (dead_) return;
  rank::Message framed = message;
  framed.version = rank::kProtocolVersion;
  framed.payload_bytes = static_cast<uint32_t>(payload.size());
  const int fd_count = static_cast<int>(fds.size());
  if (queue_.empty()) {
    const int result = rank::SendMessage(fd(), framed, payload.data(), fds.begin(), fd_count);
    if (result == 0) return;
    if (result != -EAGAIN) {
      dead_ = true;
      return;
    }
  }
  Queue(framed, payload, fds.begin(), fd_count);
}

void Link::SendError(const rank::Message& to, int code, const std::string& text) {
  rank::Message reply;
  reply.type = rank::kError;
  reply.attempt = to.attempt;
  reply.request = to.request;
  reply.peer = to.peer;
  reply.args[0] = static_cast<uint64_t>(code);
  Send(reply, text.substr(0, 4096));
}

void Link::Flush() {
  while (!queue_.empty() && !dead_) {
    Packet& packet = queue_.front();
    const int result =
        rank::SendMessage(fd(), packet.message, packet.payload.data(), packet.fds, packet.fd_count);
    if (result == -EAGAIN) return;
    if (result != 0) {
      dead_ = true;
      return;
    }
    queued_bytes_ -= sizeof(packet.message) + packet.payload.size();
    CloseFds(&packet);
    queue_.pop_front();
  }
}

}  // namespace holdfast::keeper
