// SPDX-License-Identifier: Apache-2.0
// The server's side of torch.distributed's TCPStore protocol as a pure state machine: bytes of a
// connection in, bytes for connections out. No sockets, no clock, no threads. The layout of every
// request and reply, and where it was read, is in docs/formats/tcp-store.md.
//
// Everything that a client can make it hold is bounded: what is stored, what waits, requests that
// are not whole yet, and the replies of one call. Who goes past a bound is refused, nobody else.
//
// Not thread-safe.
#ifndef HOLDFAST_AGENT_TCP_STORE_STORE_CORE_H_
#define HOLDFAST_AGENT_TCP_STORE_STORE_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace holdfast::tcp_store {

inline constexpr uint32_t kMagic = 0x3C85F7CE;
inline constexpr size_t kKeyBytesMax = 64 << 10;
inline constexpr size_t kValueBytesMax = 256 << 20;
inline constexpr size_t kKeysPerRequestMax = 128 << 10;
inline constexpr size_t kRequestBytesMax = size_t{1} << 30;
inline constexpr size_t kReplyBytesMax = size_t{1} << 30;  // one reply (MULTI_GET, LIST_KEYS)
inline constexpr size_t kReplyBatchBytes = size_t{1}
                                           << 20;  // one call of Receive, then see HasMore
// What one attempt may hold: keys, values and awaited keys.
inline constexpr size_t kHeldBytesMax = size_t{4} << 30;
inline constexpr size_t kEntryBytes = 128;  // counted for each of them beside its own bytes
// Requests of all connections that are not whole yet. Small ones are taken even then, so that who
// fills it with a large one is refused and not who comes next.
inline constexpr size_t kInputBytesMax = size_t{4} << 30;
inline constexpr size_t kInputFreeBytes = 4 << 10;

enum class Query : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDelete = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
inline constexpr uint8_t kReady = 0, kNotReady = 1;
inline constexpr uint8_t kStopWaiting = 0, kWaitCancelled = 1;

class Request;

// The bounds that tests make smaller.
struct CoreLimits {
  size_t held_bytes = kHeldBytesMax;
  size_t input_bytes = kInputBytesMax;
  size_t value_bytes = kValueBytesMax;
  size_t request_bytes = kRequestBytesMax;
  size_t reply_bytes = kReplyBytesMax;
};

class StoreCore {
 public:
  using Connection = uint64_t;
  struct Reply {
    Connection to;
    std::string bytes;
  };

  explicit StoreCore(CoreLimits limits = {}) : limits_(limits) {}

  // Takes what a connection sent, carries out the requests that are whole, and appends replies in
  // order (also to others whose waits are satisfied). It stops once the replies are more than
  // kReplyBatchBytes: HasMore then says so, and a call with no bytes goes on. False: the connection
  // must be closed, `error` says why in a sentence; its waits are forgotten.
  bool Receive(Connection from, std::string_view bytes, std::vector<Reply>* replies,
               std::string* error);
  bool HasMore(Connection connection) const;
  void Disconnected(Connection connection);

  size_t keys() const { return values_.size(); }
  size_t held_bytes() const { return held_bytes_; }
  size_t input_bytes() const { return input_bytes_; }

 private:
  // How far a request that is not whole yet has been looked at, so that no byte is looked at twice.
  struct Scan {
    size_t at = 0;
    uint64_t items_left = 0;  // of the list that the request carries, or 1
    size_t field = 0;         // of the item
    size_t needed = 1;        // bytes of the request before another look can succeed
  };

  struct Peer {
    bool validated = false;
    bool has_more = false;
    std::string input;
    Scan scan;
    std::set<std::string> waits;  // keys it still waits for
    std::string barrier;          // key of the barrier it waits in
    bool in_barrier = false;
  };

  // One request of one connection.
  struct Call {
    Connection from;
    Peer* peer;
    Request* request;
    std::vector<Reply>* replies;
    void Answer(std::string bytes) { replies->push_back({from, std::move(bytes)}); }
  };

  bool ReceiveWhole(Connection from, Peer* peer, std::vector<Reply>* replies, std::string* error);
  bool Look(std::string_view request, const Peer& peer, Scan* scan, std::string* error) const;
  bool LookAtFields(std::string_view request, Scan* scan, std::string* error) const;
  bool Carry(Connection from, Peer* peer, Request* request, std::vector<Reply>* replies);
  void OnValidate(Call* call);
  void OnSet(Call* call);
  void OnCompareSet(Call* call);
  void OnGet(Call* call);
  void OnAdd(Call* call);
  void OnCheck(Call* call);
  void OnWait(Call* call);
  void OnNumKeys(Call* call);
  void OnDelete(Call* call);
  void OnAppend(Call* call);
  void OnMultiGet(Call* call);
  void OnMultiSet(Call* call);
  void OnCancelWait(Call* call);
  void OnPing(Call* call);
  void OnQueuePush(Call* call);
  void OnQueuePop(Call* call);
  void OnQueueLen(Call* call);
  void OnListKeys(Call* call);
  void OnBarrier(Call* call);

  bool Fits(size_t more, Request* request) const;          // else it is refused
  std::string_view ValueOf(const std::string& key) const;  // empty when missing
  void Put(const std::string& key, std::string value, std::vector<Reply>* replies);
  std::string CompareSet(const std::string& key, std::string_view expected, std::string desired,
                         std::vector<Reply>* replies);
  bool Add(const std::string& key, int64_t amount, int64_t* sum);
  bool IsThere(const std::string& key) const;
  void Wait(Connection from, Peer* peer, const std::vector<std::string>& keys,
            std::vector<Reply>* replies);
  void Arrive(Connection from, Peer* peer, const std::string& key, int64_t count, int64_t world,
              std::vector<Reply>* replies);
  void Push(const std::string& key, std::string value, std::vector<Reply>* replies);
  std::string Pop(const std::string& key);  // the reply
  // Everybody who waits for the key; `one`: only the first whose last key it is.
  void Wake(const std::string& key, bool one, std::vector<Reply>* replies);
  void ForgetWaits(Connection connection, Peer* peer);

  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;
  std::unordered_map<std::string, std::list<Connection>> waiting_;   // by key, in order of arrival
  std::unordered_map<std::string, std::list<Connection>> barriers_;  // the same
  std::unordered_map<Connection, Peer> peers_;
  const CoreLimits limits_;
  size_t held_bytes_ = 0;
  size_t input_bytes_ = 0;
};

}  // namespace holdfast::tcp_store

#endif  // HOLDFAST_AGENT_TCP_STORE_STORE_CORE_H_
