// SPDX-License-Identifier: Apache-2.0
#include "agent/tcp_store/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
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
constexpr int kAcceptAgainMs = 100;  // after descriptors ran out

int64_t NowMs() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

std::string PeerName(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char host[INET6_ADDRSTRLEN + IF_NAMESIZE] = "", port[8] = "";
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket, plain, &size) != 0 ||
      ::getnameinfo(plain, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "a client";
  return std::string("client ") + host + " port " + port;
}

}  // namespace

Server::Server(UniqueFd listener, int stop, ServerLimits limits)
    : listener_(std::move(listener)), stop_(stop), limits_(limits), core_(limits.core) {
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
    const int count = ::epoll_wait(epoll_.get(), events, kEventsAtOnce, WaitMs());
    if (count < 0 && errno != EINTR) return errno;
    if (accept_again_ms_ != 0 && NowMs() >= accept_again_ms_) ResumeAccepting();
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kStopId) return 0;
      if (events[i].data.u64 == kListenerId) {
        Accept();
      } else {
        Handle(events[i].data.u64, events[i].events);
      }
    }
  }
}

int Server::WaitMs() const {
  if (accept_again_ms_ == 0) return -1;
  return static_cast<int>(std::max<int64_t>(0, accept_again_ms_ - NowMs()));
}

void Server::Accept() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Admit(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) PauseAccepting();
    return;
  }
}

void Server::Admit(UniqueFd socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t id = next_id_++;
  const bool full = clients_.size() >= limits_.connections;
  const int error = full ? 0 : Watch(EPOLL_CTL_ADD, socket.get(), id, EPOLLIN);
  if (full || error != 0) {
    if (!std::exchange(refusal_told_, true)) {
      std::fprintf(stderr, "tcp-store: %s is refused: %s; %zu clients are connected, at most %zu\n",
                   PeerName(socket.get()).c_str(), full ? "too many" : std::strerror(error),
                   clients_.size(), limits_.connections);
    }
    return;
  }
  refusal_told_ = false;
  Client& client = clients_[id];
  client.socket = std::move(socket);
  client.events = EPOLLIN;
}

// Without descriptors the listener would be readable for ever: it is looked at again when somebody
// has had time to leave.
void Server::PauseAccepting() {
  if (!std::exchange(refusal_told_, true)) {
    std::fprintf(stderr, "tcp-store: accept: %s; %zu clients are connected, others wait\n",
                 std::strerror(errno), clients_.size());
  }
  accept_again_ms_ = NowMs() + kAcceptAgainMs;
  Watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, 0);
}

void Server::ResumeAccepting() {
  accept_again_ms_ = 0;
  Watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, EPOLLIN);
}

void Server::Handle(uint64_t id, uint32_t events) {
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;  // dropped by an event before this one
  // Gone in both directions: nothing that it still asks for can reach it.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0 && (client->second.events & EPOLLIN) == 0)
    return Drop(id, "");
  if ((events & EPOLLOUT) != 0) {
    Flush(id, &client->second);
    if (clients_.count(id) != 0 && core_.HasMore(id) &&
        client->second.pending() <= kOutputPauseBytes)
      Serve(id, {});
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && clients_.count(id) != 0 &&
      (client->second.events & EPOLLIN) != 0)
    Read(id);
}

void Server::Read(uint64_t id) {
  static thread_local std::vector<char> buffer(kReadBytes);
  const ssize_t got =
      ::recv(clients_.at(id).socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Drop(id, "");
  Serve(id, {buffer.data(), static_cast<size_t>(got)});
}

void Server::Serve(uint64_t id, std::string_view bytes) {
  std::vector<StoreCore::Reply> replies;
  std::string error;
  const bool good = core_.Receive(id, bytes, &replies, &error);
  Deliver(replies);
  if (!good) return Drop(id, error);
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;
  if (output_bytes_ > limits_.output_bytes)
    return Drop(id, "more than " + std::to_string(limits_.output_bytes >> 20) +
                        " MiB of replies wait to be read");
  LookFor(id, &client->second);
}

void Server::Deliver(const std::vector<StoreCore::Reply>& replies) {
  for (const StoreCore::Reply& reply : replies) {
    const auto client = clients_.find(reply.to);
    if (client == clients_.end()) continue;
    client->second.output += reply.bytes;
    output_bytes_ += reply.bytes.size();
  }
  for (const StoreCore::Reply& reply : replies) {
    const auto client = clients_.find(reply.to);
    if (client != clients_.end()) Flush(reply.to, &client->second);
  }
}

void Server::Flush(uint64_t id, Client* client) {
  while (client->pending() > 0) {
    const ssize_t sent = ::send(client->socket.get(), client->output.data() + client->sent,
                                client->pending(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) return Drop(id, "");
    client->sent += static_cast<size_t>(sent);
    output_bytes_ -= static_cast<size_t>(sent);
  }
  if (client->pending() == 0 && client->output.capacity() > kOutputPauseBytes) {
    std::string().swap(client->output);
    client->sent = 0;
  } else if (client->sent > client->output.size() / 2) {
    // What is sent goes before it is more than what waits, so that a reader who never quite
    // catches up does not make it grow.
    client->output.erase(0, client->sent);
    client->sent = 0;
  }
  LookFor(id, client);
}

// A client that has much to read, or requests that wait for that, is not read from.
void Server::LookFor(uint64_t id, Client* client) {
  const bool more = core_.HasMore(id);
  uint32_t events = 0;
  if (client->pending() <= kOutputPauseBytes && !more) events |= EPOLLIN;
  if (client->pending() > 0 || more) events |= EPOLLOUT;
  if (events == client->events) return;
  client->events = events;
  Watch(EPOLL_CTL_MOD, client->socket.get(), id, events);
}

void Server::Drop(uint64_t id, const std::string& why) {
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;  // its socket failed while it was served
  if (!why.empty()) {
    std::fprintf(stderr, "tcp-store: %s is disconnected: %s\n",
                 PeerName(client->second.socket.get()).c_str(), why.c_str());
  }
  core_.Disconnected(id);
  output_bytes_ -= client->second.pending();
  clients_.erase(client);
}

}  // namespace holdfast::tcp_store
