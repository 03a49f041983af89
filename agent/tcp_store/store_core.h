// SPDX-License-Identifier: Apache-2.0
// The server's side of torch.distributed's TCPStore protocol as a pure state machine: bytes of a
// connection in, bytes for connections out. No sockets, no clock, no threads. The layout of every
// request and reply, and where it was read, is in docs/formats/tcp-store.md.
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
inline constexpr size_t kStoredBytesMax = size_t{4} << 30;  // keys and values of one attempt

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

class StoreCore {
 public:
  using Connection = uint64_t;
  struct Reply {
    Connection to;
    std::string bytes;
  };

  // Takes what a connection sent, carries out every request that is whole, and appends replies in
  // order (also to others whose waits are satisfied). False: the connection must be closed, `error`
  // says why in a sentence; its waits are forgotten.
  bool Receive(Connection from, std::string_view bytes, std::vector<Reply>* replies,
               std::string* error);
  void Disconnected(Connection connection);

  size_t keys() const { return values_.size(); }
  size_t stored_bytes() const { return stored_bytes_; }

 private:
  struct Peer {
    bool validated = false;
    std::string input;
    size_t needed = 1;            // bytes of input before another look can succeed
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
  size_t stored_bytes_ = 0;
};

}  // namespace holdfast::tcp_store

#endif  // HOLDFAST_AGENT_TCP_STORE_STORE_CORE_H_
