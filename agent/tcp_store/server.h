// SPDX-License-Identifier: Apache-2.0
// Serves a StoreCore on a listening socket until asked to stop. One thread, epoll; nobody who is
// slow or silent holds up another.
#ifndef HOLDFAST_AGENT_TCP_STORE_SERVER_H_
#define HOLDFAST_AGENT_TCP_STORE_SERVER_H_

#include <cstdint>
#include <map>
#include <string>

#include "agent/tcp_store/store_core.h"
#include "base/unique_fd.h"

namespace holdfast::tcp_store {

// A client that does not read is cut off when this much waits for it.
inline constexpr size_t kOutputBytesMax = size_t{1} << 30;

class Server {
 public:
  // `listener` listens already; `stop` becomes readable when the server is to end.
  Server(UniqueFd listener, int stop);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns 0 when it was asked to stop, else an errno of epoll itself.
  int Run();
  size_t connections() const { return clients_.size(); }

 private:
  struct Client {
    UniqueFd socket;
    std::string output;
    size_t sent = 0;  // of `output`
    bool wants_write = false;
  };

  int Watch(int operation, int fd, uint64_t id, uint32_t events);
  void Accept();
  void PauseAccepting();
  void Read(uint64_t id);
  void Deliver(const std::vector<StoreCore::Reply>& replies);
  void Flush(uint64_t id, Client* client);
  void Drop(uint64_t id, const std::string& why);

  const UniqueFd listener_;
  const int stop_;
  UniqueFd epoll_;
  StoreCore core_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_id_ = 2;  // 0 and 1 are the listener and the stop descriptor
  bool accepting_ = true;
};

}  // namespace holdfast::tcp_store

#endif  // HOLDFAST_AGENT_TCP_STORE_SERVER_H_
