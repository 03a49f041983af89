// SPDX-License-Identifier: Apache-2.0
#include "base/rank/message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace holdfast::rank {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * kDescriptorsMax);

void CloseAll(Descriptors* descriptors) {
  for (int i = 0; i < descriptors->count; ++i) {
    close(descriptors->fds[i]);
    descriptors->fds[i] = -1;
  }
  descriptors->count = 0;
}

// Takes every descriptor out of the control data, so that none can leak whatever the packet turns
// out to be.
void CollectDescriptors(msghdr* packet, Descriptors* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(packet); c != nullptr; c = CMSG_NXTHDR(packet, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      if (out->count < kDescriptorsMax) {
        out->fds[out->count++] = fd;
      } else {
        close(fd);
      }
    }
  }
}

bool WellFormed(const Message& message, size_t received, int flags) {
  if ((flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return false;
  if (received < sizeof(Message) || message.version != kProtocolVersion) return false;
  return message.payload_bytes <= kPayloadBytesMax &&
         received - sizeof(Message) == message.payload_bytes;
}

}  // namespace

int SendMessage(int socket, const Message& message, const void* payload, const int* fds,
                int fd_count) {
  if (message.payload_bytes > kPayloadBytesMax || (message.payload_bytes > 0 && payload == nullptr))
    return -EMSGSIZE;
  if (fd_count < 0 || fd_count > kDescriptorsMax) return -EINVAL;

  iovec parts[2];
  parts[0].iov_base = const_cast<Message*>(&message);
  parts[0].iov_len = sizeof(Message);
  parts[1].iov_base = const_cast<void*>(payload);
  parts[1].iov_len = message.payload_bytes;

  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr packet = {};
  packet.msg_iov = parts;
  packet.msg_iovlen = message.payload_bytes > 0 ? 2 : 1;
  if (fd_count > 0) {
    packet.msg_control = control;
    packet.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* c = CMSG_FIRSTHDR(&packet);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
  }
  for (;;) {
    // SOCK_SEQPACKET sends a packet whole or not at all.
    if (sendmsg(socket, &packet, MSG_NOSIGNAL) >= 0) return 0;
    if (errno != EINTR) return -errno;
  }
}

int ReceiveMessage(int socket, Message* message, void* payload, size_t payload_capacity,
                   Descriptors* descriptors) {
  iovec parts[2];
  parts[0].iov_base = message;
  parts[0].iov_len = sizeof(Message);
  parts[1].iov_base = payload;
  parts[1].iov_len = payload_capacity;

  alignas(cmsghdr) char control[kControlBytes];
  msghdr packet = {};
  packet.msg_iov = parts;
  packet.msg_iovlen = payload_capacity > 0 ? 2 : 1;
  packet.msg_control = control;
  packet.msg_controllen = sizeof(control);

  ssize_t received;
  do {
    received = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return -errno;

  Descriptors taken;
  CollectDescriptors(&packet, &taken);
  if (received == 0) {
    CloseAll(&taken);
    return 0;
  }
  if (!WellFormed(*message, static_cast<size_t>(received), packet.msg_flags)) {
    CloseAll(&taken);
    return -EPROTO;
  }
  if (descriptors != nullptr) {
    *descriptors = taken;
  } else {
    CloseAll(&taken);
  }
  return 1;
}

}  // namespace holdfast::rank
