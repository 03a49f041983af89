// SPDX-License-Identifier: Apache-2.0
#include "client/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace holdfast::client {

using rank::Message;

int64_t MonoNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Error Wire::Broken(const std::string& what) {
  broken_ = true;
  return {ECONNRESET, "keeper: " + what};
}

Error Wire::WaitFor(short events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left = deadline_ns - MonoNs();
    if (left <= 0) return {ETIMEDOUT, "keeper: no answer within the time given"};
    pollfd fd = {socket_.get(), events, 0};
    const int ready =
        poll(&fd, 1, static_cast<int>(std::min<int64_t>((left + kNsPerMs - 1) / kNsPerMs, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Broken(std::string("poll: ") + strerror(errno));
  }
}

Error Wire::SendPacket(const Message& message, const std::string& payload, int64_t deadline_ns) {
  for (;;) {
    const int result = rank::SendMessage(socket_.get(), message, payload.data(), nullptr, 0);
    if (result == 0) return {};
    if (result != -EAGAIN) return Broken(std::string("send: ") + strerror(-result));
    if (Error error = WaitFor(POLLOUT, deadline_ns)) return error;
  }
}

Error Wire::Tell(Message message, int64_t deadline_ns) {
  message.attempt = attempt_;
  return SendPacket(message, "", deadline_ns);
}

Error Wire::Call(Message request, const std::string& payload, int64_t deadline_ns,
                 WireReply* reply) {
  request.attempt = attempt_;
  request.request = next_request_++;
  request.payload_bytes = static_cast<uint32_t>(payload.size());
  if (Error error = SendPacket(request, payload, deadline_ns)) return error;
  std::string buffer(rank::kPayloadBytesMax, '\0');
  for (;;) {
    rank::Descriptors fds;
    const int result =
        rank::ReceiveMessage(socket_.get(), &reply->message, buffer.data(), buffer.size(), &fds);
    if (result == -EAGAIN) {
      if (Error error = WaitFor(POLLIN, deadline_ns)) return error;
      continue;
    }
    if (result <= 0) return Broken(result == 0 ? "connection closed" : strerror(-result));
    reply->fds.clear();
    for (int i = 0; i < fds.count; ++i) reply->fds.emplace_back(fds.fds[i]);
    if (reply->message.type == rank::kResend) {
      // Also one that was meant for an earlier request: sent twice a request is still carried out
      // once.
      const bool store = request.type >= rank::kStoreSet && request.type <= rank::kStoreDelete;
      if (!store) continue;
      if (Error error = SendPacket(request, payload, deadline_ns)) return error;
      continue;
    }
    if (reply->message.request != request.request)
      continue;  // late, for a request that was given up
    reply->payload.assign(buffer.data(), reply->message.payload_bytes);
    if (reply->message.type != rank::kError) return {};
    const int code = static_cast<int>(reply->message.args[0]);
    return {code == 0 ? EPROTO : code, reply->payload};
  }
}

std::unique_ptr<Wire> Wire::Open(const std::string& path, uint64_t attempt, int64_t deadline_ns,
                                 WireReply* welcome, Error* error) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    *error = {EINVAL, "HOLDFAST_SOCKET=" + path + ": a socket path has at most 107 bytes"};
    return nullptr;
  }
  memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int failed =
      fd.valid() ? connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) : -1;
  // EAGAIN: the keeper's queue of new connections is full for the moment.
  while (fd.valid() && failed != 0 && (errno == EAGAIN || errno == EINTR) &&
         MonoNs() < deadline_ns) {
    poll(nullptr, 0, 2);
    failed = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  if (failed != 0) {
    *error = {errno, "HOLDFAST_SOCKET=" + path + ": " + strerror(errno)};
    return nullptr;
  }
  std::unique_ptr<Wire> wire(new Wire(std::move(fd), attempt));
  Message hello;
  hello.type = rank::kHello;
  hello.args[0] = static_cast<uint64_t>(getpid());
  *error = wire->Call(hello, "", deadline_ns, welcome);
  if (!*error && welcome->message.type != rank::kWelcome)
    *error = {EPROTO, "keeper: hello was not answered by a welcome"};
  if (*error) return nullptr;
  return wire;
}

}  // namespace holdfast::client
