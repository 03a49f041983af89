// SPDX-License-Identifier: Apache-2.0
// One connection of a rank to its keeper: one request at a time, with a deadline; after kResend the
// outstanding store request is sent again. One thread at a time.
#ifndef HOLDFAST_CLIENT_WIRE_H_
#define HOLDFAST_CLIENT_WIRE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/rank/message.h"
#include "base/unique_fd.h"
#include "client/session.h"

namespace holdfast::client {

// CLOCK_MONOTONIC.
int64_t MonoNs();
inline constexpr int64_t kNsPerMs = 1'000'000;

struct WireReply {
  rank::Message message;
  std::string payload;
  std::vector<UniqueFd> fds;
};

class Wire {
 public:
  // Connects to the keeper's socket and says hello for `attempt`; the reply is kWelcome.
  static std::unique_ptr<Wire> Open(const std::string& path, uint64_t attempt, int64_t deadline_ns,
                                    WireReply* welcome, Error* error);

  // Sends and waits for the reply. A kError reply becomes the returned error with its code.
  Error Call(rank::Message request, const std::string& payload, int64_t deadline_ns,
             WireReply* reply);
  // Sends without a reply. Gives up at the deadline.
  Error Tell(rank::Message message, int64_t deadline_ns);
  bool broken() const { return broken_; }

 private:
  Wire(UniqueFd socket, uint64_t attempt) : socket_(std::move(socket)), attempt_(attempt) {}
  Error WaitFor(short events, int64_t deadline_ns);
  Error SendPacket(const rank::Message& message, const std::string& payload, int64_t deadline_ns);
  Error Broken(const std::string& what);

  UniqueFd socket_;
  uint64_t attempt_;
  uint32_t next_request_ = 1;
  bool broken_ = false;
};

}  // namespace holdfast::client

#endif  // HOLDFAST_CLIENT_WIRE_H_
