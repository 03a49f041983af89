// SPDX-License-Identifier: Apache-2.0
// A log record is {u32 bytes of the packet, u32 check, u64 client, packet}; check is FNV-1a over
// client and packet. The log holds the requests, not their effects: applying them in order gives
// the same store and the same remembered replies.
#include "agent/core/rendezvous_store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {
namespace {

constexpr size_t kRecordHeaderBytes = 16;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

uint32_t Check32(uint64_t client, std::string_view packet) {
  uint32_t hash = 2166136261u;
  const auto mix = [&hash](const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 16777619u;
  };
  mix(&client, sizeof client);
  mix(packet.data(), packet.size());
  return hash;
}

std::string MakeRecord(uint64_t client, std::string_view packet) {
  const auto bytes = static_cast<uint32_t>(packet.size());
  const uint32_t check = Check32(client, packet);
  std::string record(kRecordHeaderBytes, '\0');
  std::memcpy(record.data(), &bytes, 4);
  std::memcpy(record.data() + 4, &check, 4);
  std::memcpy(record.data() + 8, &client, 8);
  record.append(packet.data(), packet.size());
  return record;
}

bool IsChange(uint16_t type) {
  return type == rank::kStoreSet || type == rank::kStoreCas || type == rank::kStoreAdd ||
         type == rank::kStoreDelete;
}

std::string Value(const rank::Message& request, uint64_t number, std::string_view value) {
  rank::Message reply;
  reply.type = rank::kStoreValue;
  reply.attempt = request.attempt;
  reply.request = request.request;
  reply.args[0] = number;
  reply.args[1] = value.size();
  return MakePacket(reply, value);
}

// The list of kStoreWait and kStoreCheck: each key with a u32 length before it.
std::optional<std::vector<std::string>> ParseKeys(std::string_view payload) {
  std::vector<std::string> keys;
  while (!payload.empty()) {
    uint32_t bytes = 0;
    if (payload.size() < sizeof bytes) return std::nullopt;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    payload.remove_prefix(sizeof bytes);
    if (bytes == 0 || bytes > kStoreKeyBytesMax || bytes > payload.size()) return std::nullopt;
    keys.emplace_back(payload.substr(0, bytes));
    payload.remove_prefix(bytes);
  }
  return keys;
}

}  // namespace

bool ParsePacket(std::string_view bytes, rank::Message* header, std::string_view* payload) {
  if (bytes.size() < sizeof(rank::Message)) return false;
  std::memcpy(header, bytes.data(), sizeof(rank::Message));
  *payload = bytes.substr(sizeof(rank::Message));
  return header->version == rank::kProtocolVersion && header->payload_bytes == payload->size();
}

std::string MakePacket(rank::Message header, std::string_view payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
  packet.append(payload.data(), payload.size());
  return packet;
}

std::string MakeErrorPacket(const rank::Message& request, int code, std::string_view text) {
  rank::Message reply;
  reply.type = rank::kError;
  reply.attempt = request.attempt;
  reply.request = request.request;
  reply.args[0] = static_cast<uint64_t>(code);
  return MakePacket(reply, text);
}

std::string RendezvousStore::Check(const rank::Message& request, std::string_view payload) const {
  if (closed_ || request.attempt != attempt_) {
    return MakeErrorPacket(
        request, ESTALE,
        absl::StrCat("the store is of attempt ", attempt_, closed_ ? ", which is over" : "",
                     "; the request came from attempt ", request.attempt));
  }
  const bool list = request.type == rank::kStoreWait || request.type == rank::kStoreCheck;
  if (!list &&
      (request.args[0] == 0 || request.args[0] > static_cast<uint64_t>(kStoreKeyBytesMax) ||
       request.args[0] > payload.size())) {
    return MakeErrorPacket(
        request, EINVAL,
        absl::StrCat("a key has 1 to ", kStoreKeyBytesMax, " bytes, not ", request.args[0]));
  }
  return {};
}

uint64_t RendezvousStore::Handle(uint64_t client, std::string_view packet, int64_t now_ns,
                                 Reply reply) {
  rank::Message request;
  std::string_view payload;
  std::string refusal;
  if (!ParsePacket(packet, &request, &payload)) {
    refusal = MakeErrorPacket(request, EINVAL, "not a packet of the rank interface");
  } else {
    refusal = Check(request, payload);
  }
  if (refusal.empty() && clients_.size() >= static_cast<size_t>(kStoreClientsMax) &&
      clients_.count(client) == 0) {
    refusal = MakeErrorPacket(
        request, ENOSPC, absl::StrCat("more than ", kStoreClientsMax, " clients of one store"));
  }
  if (refusal.empty() && request.request < clients_[client].request) {
    refusal = MakeErrorPacket(
        request, EINVAL, absl::StrCat("request ", request.request, " is older than the newest"));
  }
  if (!refusal.empty()) {
    reply(std::move(refusal));
    return 0;
  }
  // One request outstanding for each client: an older one that still waits has nobody who reads its
  // answer.
  if (const auto old = waiters_.find(client); old != waiters_.end()) {
    const Reply dropped = std::move(old->second.reply);
    waiters_.erase(old);
    dropped({});
  }
  if (IsChange(request.type)) {
    Mutate(client, request, payload, packet, std::move(reply));
    return 0;
  }
  clients_[client] = {request.request, {}};
  return Wait(client, request, payload, now_ns, std::move(reply));
}

void RendezvousStore::Mutate(uint64_t client, const rank::Message& request,
                             std::string_view payload, std::string_view packet, Reply reply) {
  Client& known = clients_[client];
  if (request.request == known.request && !known.reply.empty()) {
    reply(known.reply);
    return;
  }
  if (log_ != nullptr) {
    const absl::Status logged = log_->Append(MakeRecord(client, packet));
    if (!logged.ok()) {
      const std::string text(logged.message());
      reply(MakeErrorPacket(
          request, logged.code() == absl::StatusCode::kResourceExhausted ? ENOSPC : EIO, text));
      return;
    }
  }
  known = {request.request, Change(request, payload)};
  // The callback may come back into this store, and waking callers may drop the client.
  const std::string answer = known.reply;
  reply(answer);
  if (std::exchange(changed_, false)) Wake();
}

uint64_t RendezvousStore::Replay(std::string_view log) {
  uint64_t good = 0;
  while (log.size() - good >= kRecordHeaderBytes) {
    uint32_t bytes = 0, check = 0;
    uint64_t client = 0;
    std::memcpy(&bytes, log.data() + good, 4);
    std::memcpy(&check, log.data() + good + 4, 4);
    std::memcpy(&client, log.data() + good + 8, 8);
    if (bytes > sizeof(rank::Message) + rank::kPayloadBytesMax ||
        log.size() - good - kRecordHeaderBytes < bytes)
      break;
    const std::string_view packet = log.substr(good + kRecordHeaderBytes, bytes);
    rank::Message request;
    std::string_view payload;
    if (check != Check32(client, packet) || !ParsePacket(packet, &request, &payload)) break;
    if (!Check(request, payload).empty() || !IsChange(request.type)) break;
    clients_[client] = {request.request, Change(request, payload)};
    good += kRecordHeaderBytes + bytes;
  }
  changed_ = false;
  return good;
}

std::string RendezvousStore::Change(const rank::Message& request, std::string_view payload) {
  switch (request.type) {
    case rank::kStoreSet:
      return Set(request, payload);
    case rank::kStoreCas:
      return CompareSet(request, payload);
    case rank::kStoreAdd:
      return Add(request, payload);
    default:
      return Delete(request, payload);
  }
}

std::string RendezvousStore::Store(const rank::Message& request, std::string_view key,
                                   std::string_view value) {
  if (value.size() > static_cast<size_t>(kStoreValueBytesMax)) {
    return MakeErrorPacket(request, EINVAL,
                           absl::StrCat("a value has at most ", kStoreValueBytesMax, " bytes"));
  }
  auto it = values_.find(key);
  int64_t grows = static_cast<int64_t>(value.size());
  grows += it == values_.end() ? static_cast<int64_t>(key.size())
                               : -static_cast<int64_t>(it->second.size());
  if (bytes_ + grows > kStoreBytesMax ||
      (it == values_.end() && values_.size() >= static_cast<size_t>(kStoreKeysMax))) {
    return MakeErrorPacket(
        request, ENOSPC,
        absl::StrCat("the store holds ", values_.size(), " keys and ", bytes_, " bytes; at most ",
                     kStoreKeysMax, " keys and ", kStoreBytesMax, " bytes"));
  }
  bytes_ += grows;
  if (it == values_.end()) {
    values_.emplace(key, value);
  } else {
    it->second = value;
  }
  changed_ = true;
  return {};
}

std::string RendezvousStore::Set(const rank::Message& request, std::string_view payload) {
  const std::string_view key = payload.substr(0, request.args[0]);
  const std::string_view value = payload.substr(request.args[0]);
  if (request.args[1] != value.size())
    return MakeErrorPacket(request, EINVAL, "value_bytes is not what was sent");
  std::string refusal = Store(request, key, value);
  return refusal.empty() ? Value(request, 0, {}) : refusal;
}

std::string RendezvousStore::CompareSet(const rank::Message& request, std::string_view payload) {
  const uint64_t rest = payload.size() - request.args[0];
  if (request.args[1] > rest || request.args[2] != rest - request.args[1]) {
    return MakeErrorPacket(request, EINVAL,
                           "expected_bytes and desired_bytes are not what was sent");
  }
  const std::string_view key = payload.substr(0, request.args[0]);
  const std::string_view expected = payload.substr(request.args[0], request.args[1]);
  const std::string_view desired = payload.substr(request.args[0] + request.args[1]);
  const auto it = values_.find(key);
  const bool swap =
      it == values_.end() ? expected.empty() : std::string_view(it->second) == expected;
  if (!swap) return it == values_.end() ? Value(request, 0, {}) : Value(request, 1, it->second);
  std::string refusal = Store(request, key, desired);
  return refusal.empty() ? Value(request, 1, desired) : refusal;
}

std::string RendezvousStore::Add(const rank::Message& request, std::string_view payload) {
  const std::string_view key = payload.substr(0, request.args[0]);
  int64_t sum = 0;
  if (const auto it = values_.find(key); it != values_.end()) {
    const char* end = it->second.data() + it->second.size();
    const auto [stop, error] = std::from_chars(it->second.data(), end, sum);
    if (error != std::errc() || stop != end) {
      return MakeErrorPacket(request, EINVAL,
                             absl::StrCat("key '", View(key), "' does not hold a number"));
    }
  }
  if (__builtin_add_overflow(sum, static_cast<int64_t>(request.args[2]), &sum)) {
    return MakeErrorPacket(request, EINVAL,
                           absl::StrCat("key '", View(key), "' would leave the range of 64 bits"));
  }
  std::string refusal = Store(request, key, std::to_string(sum));
  return refusal.empty() ? Value(request, static_cast<uint64_t>(sum), {}) : refusal;
}

std::string RendezvousStore::Delete(const rank::Message& request, std::string_view payload) {
  const auto it = values_.find(payload.substr(0, request.args[0]));
  if (it == values_.end()) return Value(request, 0, {});
  bytes_ -= static_cast<int64_t>(it->first.size() + it->second.size());
  values_.erase(it);
  return Value(request, 1, {});
}

uint64_t RendezvousStore::Wait(uint64_t client, const rank::Message& request,
                               std::string_view payload, int64_t now_ns, Reply reply) {
  Waiter waiter;
  waiter.request = request;
  waiter.get = request.type == rank::kStoreGet;
  std::optional<std::vector<std::string>> keys;
  if (waiter.get) {
    keys = {std::string(payload.substr(0, request.args[0]))};
  } else if (request.type == rank::kStoreWait || request.type == rank::kStoreCheck) {
    keys = ParseKeys(payload);
  }
  if (!keys.has_value()) {
    reply(MakeErrorPacket(request, EINVAL,
                          absl::StrCat("type ", request.type, " with a malformed list of keys")));
    return 0;
  }
  waiter.keys = *std::move(keys);
  const bool there = AllThere(waiter.keys);
  if (request.type == rank::kStoreCheck) {
    reply(Value(request, there ? 1 : 0, {}));
    return 0;
  }
  if (there) {
    reply(Answer(waiter));
    return 0;
  }
  const auto wait_ms = static_cast<int64_t>(std::min<uint64_t>(request.args[2], kStoreWaitMsMax));
  waiter.deadline_ns = now_ns + wait_ms * kNsPerMs;
  waiter.id = next_wait_++;
  waiter.reply = std::move(reply);
  const uint64_t id = waiter.id;
  waiters_[client] = std::move(waiter);
  if (wait_ms == 0) Expire(now_ns);
  return id;
}

bool RendezvousStore::AllThere(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return values_.count(key) != 0; });
}

std::string RendezvousStore::Answer(const Waiter& waiter) const {
  if (!waiter.get) return Value(waiter.request, 1, {});
  return Value(waiter.request, 1, values_.find(waiter.keys[0])->second);
}

void RendezvousStore::Wake() {
  std::vector<std::pair<Reply, std::string>> answers;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (!AllThere(it->second.keys)) {
      ++it;
      continue;
    }
    answers.emplace_back(std::move(it->second.reply), Answer(it->second));
    it = waiters_.erase(it);
  }
  for (auto& [reply, packet] : answers) reply(std::move(packet));
}

void RendezvousStore::Abandon(uint64_t wait) {
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (it->second.id != wait) continue;
    const Reply dropped = std::move(it->second.reply);
    waiters_.erase(it);
    dropped({});
    return;
  }
}

void RendezvousStore::Expire(int64_t now_ns) {
  std::vector<std::pair<Reply, std::string>> answers;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (now_ns < it->second.deadline_ns) {
      ++it;
      continue;
    }
    std::string missing;
    for (const std::string& key : it->second.keys) {
      if (values_.count(key) == 0) missing = key;
    }
    answers.emplace_back(std::move(it->second.reply),
                         MakeErrorPacket(it->second.request, ETIMEDOUT,
                                         absl::StrCat("key '", missing, "' was not set within ",
                                                      it->second.request.args[2], " ms")));
    it = waiters_.erase(it);
  }
  for (auto& [reply, packet] : answers) reply(std::move(packet));
}

int64_t RendezvousStore::NextDeadlineNs() const {
  int64_t next = 0;
  for (const auto& [unused, waiter] : waiters_) {
    if (next == 0 || waiter.deadline_ns < next) next = waiter.deadline_ns;
  }
  return next;
}

void RendezvousStore::Close() {
  closed_ = true;
  std::map<uint64_t, Waiter> waiters = std::move(waiters_);
  waiters_.clear();
  for (auto& [unused, waiter] : waiters) {
    waiter.reply(
        MakeErrorPacket(waiter.request, ESTALE, absl::StrCat("attempt ", attempt_, " is over")));
  }
}

}  // namespace holdfast::agent
