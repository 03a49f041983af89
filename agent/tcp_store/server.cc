// SPDX-License-Identifier: Apache-2.0
#include "agent/tcp_store/server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace holdfast::tcp_store {
namespace {

constexpr uint64_t kListenerId = 0, kStopId = 1;
constexpr int kEventsAtOnce = 256;
constexpr size_t kReadBytes = 256 << 10;
constexpr int kAcceptAgainMs = 100;  // after descriptors ran out, when nobody leaves

}  // namespace

Server::Server(UniqueFd listener, int stop) : listener_(std::move(listener)), stop_(stop) {
  // A client that went away between epoll and accept must not make accept wait.
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
}

int Server::Watch(int operation, int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0 ? 0 : errno;
}

int Server::Run() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return errno;
  if (const int error = Watch(EPOLL_CTL_ADD, listener_.get(), kListenerId, EPOLLIN); error != 0)
    return error;
  if (const int error = Watch(EPOLL_CTL_ADD, stop_, kStopId, EPOLLIN); error != 0) return error;
  epoll_event events[kEventsAtOnce];
  while (true) {
    const int count =
        ::epoll_wait(epoll_.get(), events, kEventsAtOnce, accepting_ ? -1 : kAcceptAgainMs);
    if (count < 0 && errno != EINTR) return errno;
    if (!accepting_) {
      accepting_ = true;
      Watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, EPOLLIN);
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kStopId) return 0;
      if (id == kListenerId) {
        Accept();
        continue;
      }
      const auto client = clients_.find(id);
      if (client == clients_.end()) continue;  // dropped by an event before this one
      if ((events[i].events & EPOLLOUT) != 0) Flush(id, &client->second);
      if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && clients_.count(id) != 0)
        Read(id);
    }
  }
}

void Server::Accept() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) PauseAccepting();
      return;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const uint64_t id = next_id_++;
    if (const int error = Watch(EPOLL_CTL_ADD, socket.get(), id, EPOLLIN); error != 0) {
      std::fprintf(stderr, "tcp-store: a client cannot be served: %s\n", std::strerror(error));
      continue;
    }
    clients_[id].socket = std::move(socket);
  }
}

// Without descriptors the listener would be readable for ever: it is looked at again when somebody
// has had time to leave.
void Server::PauseAccepting() {
  std::fprintf(stderr, "tcp-store: accept: %s; %zu clients are connected\n", std::strerror(errno),
               clients_.size());
  accepting_ = false;
  Watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, 0);
}

void Server::Read(uint64_t id) {
  static thread_local std::vector<char> buffer(kReadBytes);
  const ssize_t got =
      ::recv(clients_.at(id).socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Drop(id, "");
  std::vector<StoreCore::Reply> replies;
  std::string error;
  const bool good = core_.Receive(id, {buffer.data(), static_cast<size_t>(got)}, &replies, &error);
  Deliver(replies);
  if (!good) Drop(id, error);
}

void Server::Deliver(const std::vector<StoreCore::Reply>& replies) {
  for (const StoreCore::Reply& reply : replies) {
    const auto client = clients_.find(reply.to);
    if (client == clients_.end()) continue;
    client->second.output += reply.bytes;
  }
  for (const StoreCore::Reply& reply : replies) {
    const auto client = clients_.find(reply.to);
    if (client != clients_.end()) Flush(reply.to, &client->second);
  }
}

void Server::Flush(uint64_t id, Client* client) {
  while (client->sent < client->output.size()) {
    const ssize_t sent = ::send(client->socket.get(), client->output.data() + client->sent,
                                client->output.size() - client->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) return Drop(id, "");
    client->sent += static_cast<size_t>(sent);
  }
  if (client->sent == client->output.size()) {
    client->output.clear();
    client->sent = 0;
  }
  if (client->output.size() - client->sent > kOutputBytesMax)
    return Drop(id, "a client does not read its replies");
  const bool wants_write = !client->output.empty();
  if (wants_write == client->wants_write) return;
  client->wants_write = wants_write;
  Watch(EPOLL_CTL_MOD, client->socket.get(), id, wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Server::Drop(uint64_t id, const std::string& why) {
  if (!why.empty()) std::fprintf(stderr, "tcp-store: a client is disconnected: %s\n", why.c_str());
  core_.Disconnected(id);
  clients_.erase(id);
}

}  // namespace holdfast::tcp_store
