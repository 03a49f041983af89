// SPDX-License-Identifier: Apache-2.0
// The rendezvous store of one attempt: keys and values in memory, every change also appended to a
// file, so that an agent that is started again has it as it was. Requests are base/rank packets
// (header and payload); so are the replies.
//
// Promises: a request is carried out once, however often it arrives, by (client, request); a client
// has one request outstanding. What comes from another attempt is refused with ESTALE. A change is
// in the log before it is answered. Waiting requests hold no thread: they are kept here and
// answered by their callback, from Handle, Expire or Close. Every callback is called exactly once;
// with an empty packet when a repeat of the request took its place and nobody waits for this
// answer.
//
// Threads: one (the owner's). Time is an argument, CLOCK_MONOTONIC in ns. docs/formats/rank.md
// describes packets and the log.
#ifndef HOLDFAST_AGENT_CORE_RENDEZVOUS_STORE_H_
#define HOLDFAST_AGENT_CORE_RENDEZVOUS_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/rank/message.h"

namespace holdfast::agent {

inline constexpr int64_t kStoreClientsMax = 1 << 18;
inline constexpr int64_t kStoreBytesMax = 256 << 20;          // keys and values of one attempt
inline constexpr int64_t kStoreWaitMsMax = 24 * 3600 * 1000;  // a longer wait is cut to this

// A packet as header and payload. False when it is not one.
bool ParsePacket(std::string_view bytes, rank::Message* header, std::string_view* payload);
std::string MakePacket(rank::Message header, std::string_view payload);
// A kError reply to `request`.
std::string MakeErrorPacket(const rank::Message& request, int code, std::string_view text);

// Where changes go before they are answered; a test may fail it.
class StoreLog {
 public:
  virtual ~StoreLog() = default;
  // Appends one record, whole or not at all.
  virtual absl::Status Append(std::string_view record) = 0;
};

class RendezvousStore {
 public:
  using Reply = std::function<void(std::string packet)>;

  // `log` may be null (nothing is kept) and must outlive the store.
  RendezvousStore(uint64_t attempt, StoreLog* log) : attempt_(attempt), log_(log) {}
  RendezvousStore(const RendezvousStore&) = delete;
  RendezvousStore& operator=(const RendezvousStore&) = delete;

  // Applies the records of a log in order, answering nobody. Stops at the first that is torn or
  // damaged and returns how many bytes were good: the caller cuts the file there.
  uint64_t Replay(std::string_view log);

  // Returns 0 when it was answered at once, else a number for Abandon.
  uint64_t Handle(uint64_t client, std::string_view packet, int64_t now_ns, Reply reply);
  // The caller of a waiting request is gone. No-op when it was answered meanwhile.
  void Abandon(uint64_t wait);
  void Expire(int64_t now_ns);
  int64_t NextDeadlineNs() const;  // 0: nobody waits
  // The attempt is over: everybody who waits is answered ESTALE.
  void Close();

  uint64_t attempt() const { return attempt_; }
  size_t keys() const { return values_.size(); }
  size_t waiting() const { return waiters_.size(); }

 private:
  struct Client {
    uint32_t request = 0;
    std::string reply;  // of the newest change; empty when the newest request changed nothing
  };
  struct Waiter {
    rank::Message request;
    std::vector<std::string> keys;
    bool get = false;
    uint64_t id = 0;
    int64_t deadline_ns = 0;
    Reply reply;
  };

  // A refusal, or empty when the request may go on.
  std::string Check(const rank::Message& request, std::string_view payload) const;
  std::string Change(const rank::Message& request, std::string_view payload);
  void Mutate(uint64_t client, const rank::Message& request, std::string_view payload,
              std::string_view packet, Reply reply);
  uint64_t Wait(uint64_t client, const rank::Message& request, std::string_view payload,
                int64_t now_ns, Reply reply);
  std::string Set(const rank::Message& request, std::string_view payload);
  std::string CompareSet(const rank::Message& request, std::string_view payload);
  std::string Add(const rank::Message& request, std::string_view payload);
  std::string Delete(const rank::Message& request, std::string_view payload);
  std::string Store(const rank::Message& request, std::string_view key,
                    std::string_view value);  // empty, or a refusal
  bool AllThere(const std::vector<std::string>& keys) const;
  std::string Answer(const Waiter& waiter) const;
  void Wake();

  const uint64_t attempt_;
  StoreLog* const log_;
  std::map<std::string, std::string, std::less<>> values_;
  int64_t bytes_ = 0;
  std::unordered_map<uint64_t, Client> clients_;
  std::map<uint64_t, Waiter> waiters_;  // by client
  uint64_t next_wait_ = 1;
  bool changed_ = false;
  bool closed_ = false;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_RENDEZVOUS_STORE_H_
