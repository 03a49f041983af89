// SPDX-License-Identifier: Apache-2.0
// Serves a StoreCore on a listening socket until asked to stop. One thread, epoll; nobody who is
// slow or silent holds up another.
#ifndef HOLDFAST_AGENT_TCP_STORE_SERVER_H_
#define HOLDFAST_AGENT_TCP_STORE_SERVER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/tcp_store/store_core.h"
#include "base/unique_fd.h"

namespace holdfast::tcp_store {

// Two clients for each of the most ranks that a job can have.
inline constexpr size_t kConnectionsMax = 512 << 10;
// A client that has this much to read is not listened to until it has read it.
inline constexpr size_t kOutputPauseBytes = size_t{1} << 20;
// All that waits to be read by all clients. Whose reply is the one too many is cut off.
inline constexpr size_t kOutputBytesMax = size_t{4} << 30;

// The bounds that tests make smaller.
struct ServerLimits {
  size_t connections = kConnectionsMax;
  size_t output_bytes = kOutputBytesMax;
  CoreLimits core;
};

class Server {
 public:
  // `listener` listens already; `stop` becomes readable when the server is to end.
  Server(UniqueFd listener, int stop, ServerLimits limits = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns 0 when it was asked to stop, else an errno of epoll itself.
  int Run();

 private:
  struct Client {
    UniqueFd socket;
    std::string output;
    size_t sent = 0;      // of `output`
    uint32_t events = 0;  // that epoll looks for
    size_t pending() const { return output.size() - sent; }
  };

  int Watch(int operation, int fd, uint64_t id, uint32_t events);
  void Accept();
  void Admit(UniqueFd socket);
  void PauseAccepting();
  void ResumeAccepting();
  int WaitMs() const;
  void Handle(uint64_t id, uint32_t events);
  void Read(uint64_t id);
  void Serve(uint64_t id, std::string_view bytes);
  void Deliver(const std::vector<StoreCore::Reply>& replies);
  void Flush(uint64_t id, Client* client);
  void LookFor(uint64_t id, Client* client);
  void Drop(uint64_t id, const std::string& why);

  const UniqueFd listener_;
  const int stop_;
  const ServerLimits limits_;
  UniqueFd epoll_;
  StoreCore core_;
  std::map<uint64_t, Client> clients_;
  size_t output_bytes_ = 0;      // that wait in all clients
  uint64_t next_id_ = 2;         // 0 and 1 are the listener and the stop descriptor
  int64_t accept_again_ms_ = 0;  // 0: it accepts
  bool refusal_told_ = false;    // one line until the next client is served
};

}  // namespace holdfast::tcp_store

#endif  // HOLDFAST_AGENT_TCP_STORE_SERVER_H_
