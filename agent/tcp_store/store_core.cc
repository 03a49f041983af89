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

// What follows the type: k is a key, v a value, 4 and 8 are numbers of so many bytes.
struct Layout {
  bool list;  // a count first, then so many times the fields
  const char* fields;
};
// In the order of the types on the wire.
constexpr Layout kLayouts[] = {
    {false, "4"}, {false, "kv"}, {false, "kvv"}, {false, "k"},  {false, "k8"},
    {true, "k"},  {true, "k"},   {false, ""},    {false, "k"},  {false, "kv"},
    {true, "k"},  {true, "kv"},  {false, ""},    {false, "4"},  {false, "kv"},
    {false, "k"}, {false, "k"},  {false, ""},    {false, "k8"},
};
constexpr size_t kNumberBytes = 20;          // the longest i64 as text
constexpr size_t kInputKeptBytes = 1 << 20;  // a buffer that grew past it is not kept

template <typename T>
T NumberAt(std::string_view bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// A number at the front of a text as the real server takes it (strtoll): blanks before it, a plus
// and anything after it do not matter.
bool FrontNumber(std::string_view text, int64_t* out) {
  const size_t start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return false;
  text.remove_prefix(start);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return std::from_chars(text.data(), text.data() + text.size(), *out).ec == std::errc();
}

std::string NoClient(const std::string& what) {
  return what +
         ": not a client of TCPStore, or one of a PyTorch before 2.2; for such a job have "
         "rank 0 "
         "host the store (TORCHELASTIC_USE_AGENT_STORE=False and a MASTER_PORT of its own)";
}

std::string Unknown(uint8_t type) {
  return "request type " + std::to_string(type) +
         " is not known to this version: the job's PyTorch is newer than this Holdfast; update it, "
         "or have rank 0 host the store (TORCHELASTIC_USE_AGENT_STORE=False and a MASTER_PORT of "
         "its own)";
}

std::string TooLarge(const std::string& what, uint64_t is, uint64_t most) {
  return what + " of " + std::to_string(is) + " bytes, at most " + std::to_string(most);
}

}  // namespace

// Reads one request, which is whole, from front to back.
class Request {
 public:
  explicit Request(std::string_view input) : input_(input) {}

  const std::string& error() const { return error_; }
  void Refuse(std::string why) { error_ = std::move(why); }

  template <typename T>
  T Number() {
    const T value = NumberAt<T>(input_, used_);
    used_ += sizeof value;
    return value;
  }
  std::string Text() {
    const auto size = Number<uint64_t>();
    std::string text(input_.substr(used_, size));
    used_ += size;
    return text;
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys(Number<uint64_t>());
    for (std::string& key : keys) key = Text();
    return keys;
  }

 private:
  const std::string_view input_;
  size_t used_ = 0;
  std::string error_;
};

bool StoreCore::Receive(Connection from, std::string_view bytes, std::vector<Reply>* replies,
                        std::string* error) {
  Peer& peer = peers_[from];
  error->clear();
  input_bytes_ += bytes.size();
  peer.input.append(bytes);
  if (!ReceiveWhole(from, &peer, replies, error)) {
    Disconnected(from);
    return false;
  }
  if (input_bytes_ > limits_.input_bytes && peer.input.size() > kInputFreeBytes) {
    *error = "more than " + std::to_string(limits_.input_bytes >> 20) +
             " MiB of requests that are not whole are held";
    Disconnected(from);
    return false;
  }
  return true;
}

// Carries out what is whole. False: refused.
bool StoreCore::ReceiveWhole(Connection from, Peer* peer, std::vector<Reply>* replies,
                             std::string* error) {
  size_t used = 0, answered = 0, counted = replies->size();
  peer->has_more = false;
  while (peer->input.size() - used >= peer->scan.needed) {
    if (answered > kReplyBatchBytes) {
      peer->has_more = true;
      break;
    }
    const std::string_view left = std::string_view(peer->input).substr(used);
    if (!Look(left, *peer, &peer->scan, error)) return false;
    if (peer->scan.needed > left.size()) break;
    Request request(left);
    if (!Carry(from, peer, &request, replies)) {
      *error = request.error();
      return false;
    }
    used += peer->scan.at;
    peer->scan = Scan();
    for (; counted < replies->size(); ++counted) answered += (*replies)[counted].bytes.size();
  }
  peer->input.erase(0, used);
  if (peer->input.empty() && peer->input.capacity() > kInputKeptBytes)
    std::string().swap(peer->input);
  input_bytes_ -= used;
  return true;
}

// Goes on looking over a request whose `needed` bytes are there. After it `needed` is more than
// there is, or the request is whole and ends at `at`. False: it can never be right.
bool StoreCore::Look(std::string_view request, const Peer& peer, Scan* scan,
                     std::string* error) const {
  const auto type = static_cast<uint8_t>(request[0]);
  if (!peer.validated && type != static_cast<uint8_t>(Query::kValidate)) {
    *error = NoClient("the first byte is " + std::to_string(type));
    return false;
  }
  if (type >= std::size(kLayouts)) {
    *error = Unknown(type);
    return false;
  }
  if (scan->at == 0) {
    const Layout& layout = kLayouts[type];
    scan->needed = layout.list ? 1 + sizeof(uint64_t) : 1;
    if (request.size() < scan->needed) return true;
    scan->items_left = layout.list ? NumberAt<uint64_t>(request, 1) : 1;
    scan->at = scan->needed;
    if (scan->items_left > kKeysPerRequestMax) {
      *error = "a request of " + std::to_string(scan->items_left) + " keys, at most " +
               std::to_string(kKeysPerRequestMax);
      return false;
    }
  }
  return LookAtFields(request, scan, error);
}

bool StoreCore::LookAtFields(std::string_view request, Scan* scan, std::string* error) const {
  const char* fields = kLayouts[static_cast<uint8_t>(request[0])].fields;
  for (; scan->items_left > 0; --scan->items_left, scan->field = 0) {
    for (; fields[scan->field] != '\0'; ++scan->field) {
      const char field = fields[scan->field];
      const bool is_text = field == 'k' || field == 'v';
      const size_t head = field == '4' ? 4 : 8;
      scan->needed = scan->at + head;
      if (request.size() < scan->needed) return true;
      if (is_text) {
        const auto size = NumberAt<uint64_t>(request, scan->at);
        const size_t most = field == 'k' ? kKeyBytesMax : limits_.value_bytes;
        if (size > most) {
          *error = TooLarge(field == 'k' ? "a key" : "a value", size, most);
          return false;
        }
        scan->needed += size;
        if (scan->needed > limits_.request_bytes) {
          *error = TooLarge("a request", scan->needed, limits_.request_bytes);
          return false;
        }
        if (request.size() < scan->needed) return true;
      }
      scan->at = scan->needed;
    }
  }
  scan->needed = scan->at;
  return true;
}

// False: refused, and the error says why.
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
  static_assert(std::size(kHandlers) == std::size(kLayouts));
  Call call{from, peer, request, replies};
  (this->*kHandlers[request->Number<uint8_t>()])(&call);
  return request->error().empty();
}

bool StoreCore::HasMore(Connection connection) const {
  const auto peer = peers_.find(connection);
  return peer != peers_.end() && peer->second.has_more;
}

// ---- One request each ----

void StoreCore::OnValidate(Call* call) {
  const auto magic = call->request->Number<uint32_t>();
  if (magic != kMagic) call->request->Refuse(NoClient("the magic number is wrong"));
  call->peer->validated = magic == kMagic;
}

void StoreCore::OnSet(Call* call) {
  const std::string key = call->request->Text();
  std::string value = call->request->Text();
  if (!Fits(key.size() + value.size() + kEntryBytes, call->request)) return;
  Put(key, std::move(value), call->replies);
}

void StoreCore::OnCompareSet(Call* call) {
  const std::string key = call->request->Text();
  const std::string expected = call->request->Text();
  std::string wanted = call->request->Text();
  if (!Fits(key.size() + wanted.size() + kEntryBytes, call->request)) return;
  call->Answer(Bytes(CompareSet(key, expected, std::move(wanted), call->replies)));
}

void StoreCore::OnGet(Call* call) {
  const std::string key = call->request->Text();
  call->Answer(Bytes(ValueOf(key)));
}

void StoreCore::OnAdd(Call* call) {
  const std::string key = call->request->Text();
  const auto amount = call->request->Number<int64_t>();
  int64_t sum = 0;
  if (!Fits(key.size() + kNumberBytes + kEntryBytes, call->request)) return;
  if (!Add(key, amount, &sum))
    return call->request->Refuse("add to a key whose value is no number");
  call->Answer(Value<int64_t>(sum));
  Wake(key, /*one=*/false, call->replies);
}

void StoreCore::OnCheck(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  const bool all = std::all_of(keys.begin(), keys.end(),
                               [this](const std::string& key) { return IsThere(key); });
  call->Answer(Value<uint8_t>(all ? kReady : kNotReady));
}

void StoreCore::OnWait(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  size_t awaited = 0;
  for (const std::string& key : keys) awaited += IsThere(key) ? 0 : key.size() + kEntryBytes;
  if (awaited != 0 && !Fits(awaited, call->request)) return;
  Wait(call->from, call->peer, keys, call->replies);
}

void StoreCore::OnNumKeys(Call* call) {
  call->Answer(Value<int64_t>(static_cast<int64_t>(values_.size())));
}

void StoreCore::OnDelete(Call* call) {
  const std::string key = call->request->Text();
  const auto found = values_.find(key);
  const bool there = found != values_.end();
  if (there) {
    held_bytes_ -= key.size() + kEntryBytes + found->second.size();
    values_.erase(found);
  }
  call->Answer(Value<int64_t>(there ? 1 : 0));
}

void StoreCore::OnAppend(Call* call) {
  const std::string key = call->request->Text();
  const std::string more = call->request->Text();
  if (!Fits(key.size() + more.size() + kEntryBytes, call->request)) return;
  const size_t size = ValueOf(key).size() + more.size();
  if (size > limits_.value_bytes)
    return call->request->Refuse(TooLarge("a value", size, limits_.value_bytes));
  const auto [found, is_new] = values_.try_emplace(key);
  held_bytes_ += more.size() + (is_new ? key.size() + kEntryBytes : 0);
  found->second += more;
  Wake(key, /*one=*/false, call->replies);
}

void StoreCore::OnMultiGet(Call* call) {
  const std::vector<std::string> keys = call->request->Keys();
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += sizeof(uint64_t) + ValueOf(key).size();
  if (bytes > limits_.reply_bytes)
    return call->request->Refuse(TooLarge("a multi_get", bytes, limits_.reply_bytes));
  std::string all;
  all.reserve(bytes);
  for (const std::string& key : keys) PutBytes(&all, ValueOf(key));
  call->Answer(std::move(all));
}

void StoreCore::OnMultiSet(Call* call) {
  for (auto left = call->request->Number<uint64_t>(); left > 0; --left) {
    const std::string key = call->request->Text();
    std::string value = call->request->Text();
    if (!Fits(key.size() + value.size() + kEntryBytes, call->request)) return;
    Put(key, std::move(value), call->replies);
  }
}

void StoreCore::OnCancelWait(Call* call) {
  ForgetWaits(call->from, call->peer);
  call->Answer(Value<uint8_t>(kWaitCancelled));
}

void StoreCore::OnPing(Call* call) {
  const auto nonce = call->request->Number<uint32_t>();
  call->Answer(Value<uint32_t>(nonce));
}

void StoreCore::OnQueuePush(Call* call) {
  const std::string key = call->request->Text();
  std::string value = call->request->Text();
  if (!Fits(key.size() + value.size() + kEntryBytes, call->request)) return;
  Push(key, std::move(value), call->replies);
}

void StoreCore::OnQueuePop(Call* call) {
  const std::string key = call->request->Text();
  call->Answer(Pop(key));
}

void StoreCore::OnQueueLen(Call* call) {
  const std::string key = call->request->Text();
  const auto queue = queues_.find(key);
  const size_t length = queue == queues_.end() ? 0 : queue->second.size();
  call->Answer(Value<int64_t>(static_cast<int64_t>(length)));
}

void StoreCore::OnListKeys(Call* call) {
  std::string out = Value<int64_t>(static_cast<int64_t>(values_.size()));
  for (const auto& [key, unused] : values_) {
    PutBytes(&out, key);
    if (out.size() > limits_.reply_bytes)
      return call->request->Refuse(TooLarge("list_keys", out.size(), limits_.reply_bytes));
  }
  call->Answer(std::move(out));
}

void StoreCore::OnBarrier(Call* call) {
  const std::string key = call->request->Text();
  const auto world = call->request->Number<int64_t>();
  int64_t count = 0;
  if (!Fits(key.size() + kNumberBytes + kEntryBytes, call->request)) return;
  if (!Add(key, 1, &count))
    return call->request->Refuse("a barrier at a key whose value is no number");
  Arrive(call->from, call->peer, key, count, world, call->replies);
}

// ---- What they do ----

bool StoreCore::Fits(size_t more, Request* request) const {
  if (held_bytes_ + more <= limits_.held_bytes) return true;
  request->Refuse("the store of this job would hold more than " +
                  std::to_string(limits_.held_bytes >> 20) + " MiB");
  return false;
}

std::string_view StoreCore::ValueOf(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string_view() : std::string_view(found->second);
}

void StoreCore::Put(const std::string& key, std::string value, std::vector<Reply>* replies) {
  const auto [found, is_new] = values_.try_emplace(key);
  held_bytes_ += value.size() + (is_new ? key.size() + kEntryBytes : 0) - found->second.size();
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
  if (!is_new && !FrontNumber(text, &old)) return false;
  if (__builtin_add_overflow(old, amount, sum)) return false;
  const std::string now = std::to_string(*sum);
  held_bytes_ += now.size() + (is_new ? key.size() + kEntryBytes : 0) - text.size();
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
    if (IsThere(key) || !peer->waits.insert(key).second) continue;
    waiting_[key].push_back(from);
    held_bytes_ += key.size() + kEntryBytes;
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
  held_bytes_ += key.size() + kEntryBytes + value.size();
  queues_[key].push_back(std::move(value));
  Wake(key, /*one=*/true, replies);
}

std::string StoreCore::Pop(const std::string& key) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return Value<int64_t>(0);
  std::string out = Value<int64_t>(static_cast<int64_t>(queue->second.size()));
  PutBytes(&out, queue->second.front());
  held_bytes_ -= key.size() + kEntryBytes + queue->second.front().size();
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
    held_bytes_ -= key.size() + kEntryBytes;
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
  for (const std::string& key : peer->waits) {
    forget(&waiting_, key);
    held_bytes_ -= key.size() + kEntryBytes;
  }
  peer->waits.clear();
  if (peer->in_barrier) forget(&barriers_, peer->barrier);
  peer->in_barrier = false;
}

void StoreCore::Disconnected(Connection connection) {
  const auto peer = peers_.find(connection);
  if (peer == peers_.end()) return;
  ForgetWaits(connection, &peer->second);
  input_bytes_ -= peer->second.input.size();
  peers_.erase(peer);
}

}  // namespace holdfast::tcp_store
