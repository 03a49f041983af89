// SPDX-License-Identifier: Apache-2.0
#include "agent/tcp_store/store_core.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

namespace holdfast::tcp_store {
namespace {

template <typename T>
void PutValue(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian, as the client
}

void PutBytes(std::string* out, std::string_view bytes) {
  PutValue<uint64_t>(out, bytes.size());
  out->append(bytes);
}

template <typename T>
std::string Value(T value) {
  std::string out;
  PutValue(&out, value);
  return out;
}

std::string Bytes(std::string_view bytes) {
  std::string out;
  PutBytes(&out, bytes);
  return out;
}

}  // namespace

// Reads one request from the front of a buffer. What is not whole yet sets `needed`, what can never
// be right sets `error`; both make every further read do nothing.
class Request {
 public:
  explicit Request(std::string_view input) : input_(input) {}

  bool whole() const { return needed_ == 0 && error_.empty(); }
  size_t used() const { return used_; }
  size_t needed() const { return needed_; }
  const std::string& error() const { return error_; }
  void Refuse(std::string why) { error_ = std::move(why); }

  template <typename T>
  T Number() {
    T value{};
    if (Have(sizeof value)) {
      std::memcpy(&value, input_.data() + used_, sizeof value);
      used_ += sizeof value;
    }
    return value;
  }
  std::string Key() { return Text(kKeyBytesMax, "key"); }
  std::string Payload() { return Text(kValueBytesMax, "value"); }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    for (uint64_t left = Count(); left > 0 && whole(); --left) keys.push_back(Key());
    return keys;
  }
  uint64_t Count() {
    const auto count = Number<uint64_t>();
    if (whole() && count > kKeysPerRequestMax)
      Refuse("a request of " + std::to_string(count) + " keys, at most " +
             std::to_string(kKeysPerRequestMax));
    return whole() ? count : 0;
  }

 private:
  bool Have(size_t bytes) {
    if (!whole()) return false;
    if (input_.size() - used_ >= bytes) return true;
    needed_ = used_ + bytes;
    return false;
  }
  std::string Text(size_t bytes_max, const char* what) {
    const auto size = Number<uint64_t>();
    if (whole() && size > bytes_max)
      Refuse(std::string("a ") + what + " of " + std::to_string(size) + " bytes, at most " +
             std::to_string(bytes_max));
    if (!Have(size)) return "";
    std::string text(input_.substr(used_, size));
    used_ += size;
    return text;
  }

  const std::string_view input_;
  size_t used_ = 0;
  size_t needed_ = 0;
  std::string error_;
};

bool StoreCore::Receive(Connection from, std::string_view bytes, std::vector<Reply>* replies,
                        std::string* error) {
  Peer& peer = peers_[from];
  peer.input.append(bytes);
  size_t used = 0;
  while (peer.input.size() - used >= peer.needed) {
    Request request(std::string_view(peer.input).substr(used));
    if (!Carry(from, &peer, &request, replies)) {
      *error = request.error();
      Disconnected(from);
      return false;
    }
    if (!request.whole()) {
      peer.needed = request.needed();
      break;
    }
    used += request.used();
    peer.needed = 1;
  }
  peer.input.erase(0, used);
  return true;
}

// False: refused. A request that is not whole changes nothing.
bool StoreCore::Carry(Connection from, Peer* peer, Request* request, std::vector<Reply>* replies) {
  // In the order of the types on the wire.
  constexpr void (StoreCore::*kHandlers[])(Call*) = {
      &StoreCore::OnValidate,   &StoreCore::OnSet,      &StoreCore::OnCompareSet,
      &StoreCore::OnGet,        &StoreCore::OnAdd,      &StoreCore::OnCheck,
      &StoreCore::OnWait,       &StoreCore::OnNumKeys,  &StoreCore::OnDelete,
      &StoreCore::OnAppend,     &StoreCore::OnMultiGet, &StoreCore::OnMultiSet,
      &StoreCore::OnCancelWait, &StoreCore::OnPing,     &StoreCore::OnQueuePush,
      &StoreCore::OnQueuePop,   &StoreCore::OnQueueLen, &StoreCore::OnListKeys,
      &StoreCore::OnBarrier};
  const auto type = request->Number<uint8_t>();
  if (!peer->validated && type != static_cast<uint8_t>(Query::kValidate)) {
    request->Refuse("the first byte is " + std::to_string(type) + ": not a client of TCPStore");
  } else if (type >= std::size(kHandlers)) {
    request->Refuse("request type " + std::to_string(type) +
                    " is not known to this version: the job's PyTorch is newer than this Holdfast; "
                    "update it, or have rank 0 host the store (init_method=tcp://, or "
                    "TORCHELASTIC_USE_AGENT_STORE=False)");
  } else {
    Call call{from, peer, request, replies};
    (this->*kHandlers[type])(&call);
  }
  if (request->error().empty() && stored_bytes_ > kStoredBytesMax)
    request->Refuse("more than " + std::to_string(kStoredBytesMax >> 20) + " MiB are stored");
  return request->error().empty();
}

// ---- One request each: read all of it, then act if it is whole. ----

void StoreCore::OnValidate(Call* call) {
  const auto magic = call->request->Number<uint32_t>();
  if (call->request->whole() && magic != kMagic) call->request->Refuse("a wrong magic number");
  call->peer->validated = call->request->whole();
}

void StoreCore::OnSet(Call* call) {
  const std::string key = call->request->Key();
  std::string value = call->request->Payload();
  if (call->request->whole()) Put(key, std::move(value), call->replies);
}

void StoreCore::OnCompareSet(Call* call) {
  const std::string key = call->request->Key(), expected = call->request->Payload();
  std::string wanted = call->request->Payload();
  if (!call->request->whole()) return;
  call->Answer(Bytes(CompareSet(key, expected, std::move(wanted), call->replies)));
}

void StoreCore::OnGet(Call* call) {
  const std::string key = call->request->Key();
  if (call->request->whole()) call->Answer(Bytes(ValueOf(key)));
}

void StoreCore::OnAdd(Call* call) {
  const std::string key = call->request->Key();
  const auto amount = call->request->Number<int64_t>();
  int64_t sum = 0;
  if (!call->request->whole()) return;
  if (!Add(key, amount, &sum))
    return call->request->Refuse("add to a key whose value is no number");
  call->Answer(Value<int64_t>(sum));
  Wake(key, /*one=*/false, call->replies);
}

void StoreCore::OnCheck(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  if (!call->request->whole()) return;
  const bool all = std::all_of(keys.begin(), keys.end(),
                               [this](const std::string& key) { return IsThere(key); });
  call->Answer(Value<uint8_t>(all ? kReady : kNotReady));
}

void StoreCore::OnWait(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  if (call->request->whole()) Wait(call->from, call->peer, keys, call->replies);
}

void StoreCore::OnNumKeys(Call* call) {
  call->Answer(Value<int64_t>(static_cast<int64_t>(values_.size())));
}

void StoreCore::OnDelete(Call* call) {
  const std::string key = call->request->Key();
  if (!call->request->whole()) return;
  const auto found = values_.find(key);
  const bool there = found != values_.end();
  if (there) {
    stored_bytes_ -= key.size() + found->second.size();
    values_.erase(found);
  }
  call->Answer(Value<int64_t>(there ? 1 : 0));
}

void StoreCore::OnAppend(Call* call) {
  const std::string key = call->request->Key(), more = call->request->Payload();
  if (!call->request->whole()) return;
  const auto [found, is_new] = values_.try_emplace(key);
  stored_bytes_ += more.size() + (is_new ? key.size() : 0);
  found->second += more;
  Wake(key, /*one=*/false, call->replies);
}

void StoreCore::OnMultiGet(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  if (!call->request->whole()) return;
  std::string all;
  for (const std::string& key : keys) PutBytes(&all, ValueOf(key));
  call->Answer(std::move(all));
}

void StoreCore::OnMultiSet(Call* call) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (uint64_t left = call->request->Count(); left > 0 && call->request->whole(); --left) {
    std::string key = call->request->Key();
    pairs.emplace_back(std::move(key), call->request->Payload());
  }
  if (!call->request->whole()) return;
  for (auto& [key, value] : pairs) Put(key, std::move(value), call->replies);
}

void StoreCore::OnCancelWait(Call* call) {
  ForgetWaits(call->from, call->peer);
  call->Answer(Value<uint8_t>(kWaitCancelled));
}

void StoreCore::OnPing(Call* call) {
  const auto nonce = call->request->Number<uint32_t>();
  if (call->request->whole()) call->Answer(Value<uint32_t>(nonce));
}

void StoreCore::OnQueuePush(Call* call) {
  const std::string key = call->request->Key();
  std::string value = call->request->Payload();
  if (call->request->whole()) Push(key, std::move(value), call->replies);
}

void StoreCore::OnQueuePop(Call* call) {
  const std::string key = call->request->Key();
  if (call->request->whole()) call->Answer(Pop(key));
}

void StoreCore::OnQueueLen(Call* call) {
  const std::string key = call->request->Key();
  if (!call->request->whole()) return;
  const auto queue = queues_.find(key);
  const size_t length = queue == queues_.end() ? 0 : queue->second.size();
  call->Answer(Value<int64_t>(static_cast<int64_t>(length)));
}

void StoreCore::OnListKeys(Call* call) {
  std::string out = Value<int64_t>(static_cast<int64_t>(values_.size()));
  for (const auto& [key, unused] : values_) PutBytes(&out, key);
  call->Answer(std::move(out));
}

void StoreCore::OnBarrier(Call* call) {
  const std::string key = call->request->Key();
  const auto world = call->request->Number<int64_t>();
  int64_t count = 0;
  if (!call->request->whole()) return;
  if (!Add(key, 1, &count))
    return call->request->Refuse("a barrier at a key whose value is no number");
  Arrive(call->from, call->peer, key, count, world, call->replies);
}

// ---- What they do ----

std::string_view StoreCore::ValueOf(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string_view() : std::string_view(found->second);
}

void StoreCore::Put(const std::string& key, std::string value, std::vector<Reply>* replies) {
  const auto [found, is_new] = values_.try_emplace(key);
  stored_bytes_ += value.size() + (is_new ? key.size() : 0) - found->second.size();
  found->second = std::move(value);
  Wake(key, /*one=*/false, replies);
}

std::string StoreCore::CompareSet(const std::string& key, std::string_view expected,
                                  std::string desired, std::vector<Reply>* replies) {
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return std::string(expected);
  if (found == values_.end() || found->second == expected) {
    Put(key, desired, replies);
    return desired;
  }
  return found->second;
}

bool StoreCore::Add(const std::string& key, int64_t amount, int64_t* sum) {
  const auto [found, is_new] = values_.try_emplace(key);
  std::string& text = found->second;
  int64_t old = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), old);
  if (!is_new && (error != std::errc() || end != text.data() + text.size())) return false;
  if (__builtin_add_overflow(old, amount, sum)) return false;
  const std::string now = std::to_string(*sum);
  stored_bytes_ += now.size() + (is_new ? key.size() : 0) - text.size();
  text = now;
  return true;
}

bool StoreCore::IsThere(const std::string& key) const {
  if (values_.count(key) != 0) return true;
  const auto queue = queues_.find(key);
  return queue != queues_.end() && !queue->second.empty();
}

void StoreCore::Wait(Connection from, Peer* peer, const std::vector<std::string>& keys,
                     std::vector<Reply>* replies) {
  ForgetWaits(from, peer);  // a client has one wait at a time
  for (const std::string& key : keys) {
    if (!IsThere(key) && peer->waits.insert(key).second) waiting_[key].push_back(from);
  }
  if (peer->waits.empty()) replies->push_back({from, Value<uint8_t>(kStopWaiting)});
}

void StoreCore::Arrive(Connection from, Peer* peer, const std::string& key, int64_t count,
                       int64_t world, std::vector<Reply>* replies) {
  Wake(key, /*one=*/false, replies);
  if (count < world) {
    ForgetWaits(from, peer);
    peer->in_barrier = true;
    peer->barrier = key;
    barriers_[key].push_back(from);
    return;
  }
  replies->push_back({from, Value<uint8_t>(kStopWaiting)});
  const auto others = barriers_.find(key);
  if (others == barriers_.end()) return;
  for (const Connection other : others->second) {
    peers_[other].in_barrier = false;
    replies->push_back({other, Value<uint8_t>(kStopWaiting)});
  }
  barriers_.erase(others);
}

void StoreCore::Push(const std::string& key, std::string value, std::vector<Reply>* replies) {
  stored_bytes_ += key.size() + value.size();
  queues_[key].push_back(std::move(value));
  Wake(key, /*one=*/true, replies);
}

std::string StoreCore::Pop(const std::string& key) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return Value<int64_t>(0);
  std::string out = Value<int64_t>(static_cast<int64_t>(queue->second.size()));
  PutBytes(&out, queue->second.front());
  stored_bytes_ -= key.size() + queue->second.front().size();
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  return out;
}

void StoreCore::Wake(const std::string& key, bool one, std::vector<Reply>* replies) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  std::list<Connection>& waiting = found->second;
  for (auto it = waiting.begin(); it != waiting.end();) {
    Peer& peer = peers_[*it];
    // One item of a queue is for one client: others go on waiting for the next.
    if (one && peer.waits.size() > 1) {
      ++it;
      continue;
    }
    peer.waits.erase(key);
    // What it still waits for may be a queue that got its item meanwhile.
    const bool done = std::all_of(peer.waits.begin(), peer.waits.end(),
                                  [this](const std::string& other) { return IsThere(other); });
    if (done) {
      ForgetWaits(*it, &peer);
      replies->push_back({*it, Value<uint8_t>(kStopWaiting)});
    }
    it = waiting.erase(it);
    if (one && done) break;
  }
  if (waiting.empty()) waiting_.erase(found);
}

void StoreCore::ForgetWaits(Connection connection, Peer* peer) {
  const auto forget = [connection](auto* lists, const std::string& key) {
    const auto found = lists->find(key);
    if (found == lists->end()) return;
    found->second.remove(connection);
    if (found->second.empty()) lists->erase(found);
  };
  for (const std::string& key : peer->waits) forget(&waiting_, key);
  peer->waits.clear();
  if (peer->in_barrier) forget(&barriers_, peer->barrier);
  peer->in_barrier = false;
}

void StoreCore::Disconnected(Connection connection) {
  const auto peer = peers_.find(connection);
  if (peer == peers_.end()) return;
  ForgetWaits(connection, &peer->second);
  peers_.erase(peer);
}

}  // namespace holdfast::tcp_store
