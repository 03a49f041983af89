// SPDX-License-Identifier: Apache-2.0
// Not covered here: the file itself (agent/job_store.cc), which the foundation tests kill agents
// over.
#include "agent/core/rendezvous_store.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {
namespace {

class MemoryLog final : public StoreLog {
 public:
  absl::Status Append(std::string_view record) override {
    if (full) return absl::ResourceExhaustedError("no space left");
    bytes.append(record);
    return absl::OkStatus();
  }
  std::string bytes;
  bool full = false;
};

rank::Message Header(rank::MessageType type, uint32_t request, uint64_t a0, uint64_t a1 = 0,
                     uint64_t a2 = 0, uint64_t attempt = 3) {
  rank::Message m;
  m.type = type;
  m.attempt = attempt;
  m.request = request;
  m.args[0] = a0;
  m.args[1] = a1;
  m.args[2] = a2;
  return m;
}

std::string Set(uint32_t request, const std::string& key, const std::string& value) {
  return MakePacket(Header(rank::kStoreSet, request, key.size(), value.size()), key + value);
}
std::string Get(uint32_t request, const std::string& key, uint64_t timeout_ms) {
  return MakePacket(Header(rank::kStoreGet, request, key.size(), 0, timeout_ms), key);
}
std::string Add(uint32_t request, const std::string& key, int64_t delta) {
  return MakePacket(Header(rank::kStoreAdd, request, key.size(), 0, static_cast<uint64_t>(delta)),
                    key);
}
std::string Cas(uint32_t request, const std::string& key, const std::string& expected,
                const std::string& desired) {
  return MakePacket(Header(rank::kStoreCas, request, key.size(), expected.size(), desired.size()),
                    key + expected + desired);
}
std::string List(rank::MessageType type, uint32_t request, const std::vector<std::string>& keys,
                 uint64_t timeout_ms) {
  std::string payload;
  for (const std::string& key : keys) {
    const auto bytes = static_cast<uint32_t>(key.size());
    payload.append(reinterpret_cast<const char*>(&bytes), 4).append(key);
  }
  return MakePacket(Header(type, request, payload.size(), 0, timeout_ms), payload);
}

struct Answer {
  int calls = 0;
  bool dropped = false;
  uint16_t type = 0;
  uint64_t number = 0;
  uint32_t request = 0;
  std::string value;
};

class Store : public testing::Test {
 protected:
  RendezvousStore::Reply Into(Answer* out) {
    return [out](const std::string& packet) {
      ++out->calls;
      rank::Message m;
      std::string_view payload;
      out->dropped = packet.empty();
      if (!ParsePacket(packet, &m, &payload)) return;
      *out = {out->calls, false, m.type, m.args[0], m.request, std::string(payload)};
    };
  }
  Answer Ask(uint64_t client, const std::string& packet, int64_t now_ns = 0) {
    Answer answer;
    store_.Handle(client, packet, now_ns, Into(&answer));
    EXPECT_EQ(answer.calls, 1);
    return answer;
  }
  MemoryLog log_;
  RendezvousStore store_{3, &log_};
};

TEST_F(Store, SetGetAddDelete) {
  EXPECT_EQ(Ask(1, Set(1, "k", "v")).type, rank::kStoreValue);
  EXPECT_EQ(Ask(1, Get(2, "k", 0)).value, "v");
  EXPECT_EQ(Ask(1, Add(3, "n", 5)).number, 5u);
  EXPECT_EQ(static_cast<int64_t>(Ask(1, Add(4, "n", -7)).number), -2);
  EXPECT_EQ(Ask(1, Get(5, "n", 0)).value, "-2");
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreDelete, 6, 1), "k")).number, 1u);
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreDelete, 7, 1), "k")).number, 0u);
  EXPECT_EQ(Ask(1, Add(8, "k", 1)).number, 1u);
  EXPECT_EQ(Ask(1, Set(9, "k", "text")).type, rank::kStoreValue);
  EXPECT_EQ(Ask(1, Add(10, "k", 1)).number, static_cast<uint64_t>(EINVAL));
}

TEST_F(Store, CompareSetAsC10d) {
  EXPECT_EQ(Ask(1, Cas(1, "k", "", "a")).value, "a") << "absent and nothing expected";
  EXPECT_EQ(Ask(1, Cas(2, "k", "", "b")).value, "a");
  EXPECT_EQ(Ask(1, Cas(3, "k", "a", "c")).value, "c");
  EXPECT_EQ(Ask(1, Cas(4, "absent", "x", "y")).value, "");
  EXPECT_EQ(Ask(1, List(rank::kStoreCheck, 5, {"absent"}, 0)).number, 0u);
}

TEST_F(Store, AWaitingGetIsAnsweredByTheSet) {
  Answer waiting;
  EXPECT_NE(store_.Handle(7, Get(1, "late", 1000), 0, Into(&waiting)), 0u);
  EXPECT_EQ(waiting.calls, 0);
  EXPECT_EQ(store_.NextDeadlineNs(), 1000 * kNsPerMs);
  Ask(8, Set(1, "late", "here"));
  EXPECT_EQ(waiting.calls, 1);
  EXPECT_EQ(waiting.value, "here");
  EXPECT_EQ(store_.waiting(), 0u);
}

TEST_F(Store, WaitNeedsAllKeysAndEndsAtItsDeadline) {
  Answer waiting;
  store_.Handle(7, List(rank::kStoreWait, 1, {"a", "b"}, 1000), 0, Into(&waiting));
  Ask(8, Set(1, "a", ""));
  store_.Expire(999 * kNsPerMs);
  EXPECT_EQ(waiting.calls, 0);
  store_.Expire(1000 * kNsPerMs);
  EXPECT_EQ(waiting.calls, 1);
  EXPECT_EQ(waiting.type, rank::kError);
  EXPECT_EQ(waiting.number, static_cast<uint64_t>(ETIMEDOUT));
  EXPECT_NE(waiting.value.find("'b'"), std::string::npos) << waiting.value;
  EXPECT_EQ(Ask(7, Get(2, "never", 0)).number, static_cast<uint64_t>(ETIMEDOUT));
}

TEST_F(Store, ARepeatIsAnsweredAsIfSentOnce) {
  EXPECT_EQ(Ask(1, Add(1, "n", 1)).number, 1u);
  EXPECT_EQ(Ask(1, Add(1, "n", 1)).number, 1u);
  EXPECT_EQ(Ask(2, Add(1, "n", 1)).number, 2u) << "another client";
  EXPECT_EQ(Ask(1, Cas(2, "lock", "", "me")).value, "me");
  Ask(2, Set(2, "lock", "taken"));
  EXPECT_EQ(Ask(1, Cas(2, "lock", "", "me")).value, "me") << "the answer it had";
  EXPECT_EQ(Ask(1, Add(1, "n", 1)).number, static_cast<uint64_t>(EINVAL))
      << "older than the newest";
}

TEST_F(Store, ARepeatedWaitTakesThePlaceOfTheFirst) {
  Answer first, second;
  const uint64_t wait = store_.Handle(1, Get(1, "k", 1000), 0, Into(&first));
  const uint64_t again = store_.Handle(1, Get(1, "k", 1000), 0, Into(&second));
  EXPECT_TRUE(first.dropped);
  EXPECT_NE(wait, again);
  store_.Abandon(wait);  // late news of the first caller's end
  Ask(2, Set(1, "k", "v"));
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(second.value, "v");
}

TEST_F(Store, AbandonedWaitsAreForgotten) {
  Answer waiting;
  store_.Abandon(store_.Handle(1, Get(1, "k", 1000), 0, Into(&waiting)));
  EXPECT_TRUE(waiting.dropped);
  EXPECT_EQ(store_.waiting(), 0u);
}

TEST_F(Store, RefusesOtherAttemptsAndDiesWithItsOwn) {
  const std::string old = MakePacket(Header(rank::kStoreSet, 1, 1, 1, 0, 2), "kv");
  EXPECT_EQ(Ask(1, old).number, static_cast<uint64_t>(ESTALE));
  Answer waiting;
  store_.Handle(1, Get(1, "k", 1000), 0, Into(&waiting));
  store_.Close();
  EXPECT_EQ(waiting.number, static_cast<uint64_t>(ESTALE));
  EXPECT_EQ(Ask(2, Set(1, "k", "v")).number, static_cast<uint64_t>(ESTALE));
}

TEST_F(Store, AChangeThatCannotBeLoggedDidNotHappen) {
  log_.full = true;
  EXPECT_EQ(Ask(1, Set(1, "k", "v")).number, static_cast<uint64_t>(ENOSPC));
  EXPECT_EQ(store_.keys(), 0u);
  log_.full = false;
  EXPECT_EQ(Ask(1, Set(1, "k", "v")).type, rank::kStoreValue) << "the same request again";
  EXPECT_EQ(store_.keys(), 1u);
}

TEST_F(Store, ReplayGivesTheSameStoreAndTheSameAnswers) {
  Ask(1, Set(1, "a", "1"));
  Ask(1, Add(2, "n", 41));
  Ask(2, Add(1, "n", 1));
  Ask(2, Cas(2, "lock", "", "two"));
  Ask(1, MakePacket(Header(rank::kStoreDelete, 3, 1), "a"));
  RendezvousStore again(3, nullptr);
  EXPECT_EQ(again.Replay(log_.bytes), log_.bytes.size());
  EXPECT_EQ(again.keys(), 2u);
  Answer answer;
  again.Handle(2, Cas(2, "lock", "", "two"), 0, Into(&answer));
  EXPECT_EQ(answer.value, "two") << "a repeat across the restart";
  again.Handle(1, Get(4, "n", 0), 0, Into(&answer));
  EXPECT_EQ(answer.value, "42");
}

TEST_F(Store, ReplayStopsAtATornOrDamagedRecord) {
  Ask(1, Set(1, "a", "1"));
  const size_t first = log_.bytes.size();
  Ask(1, Set(2, "b", "2"));
  for (size_t cut = first; cut < log_.bytes.size(); ++cut) {
    RendezvousStore again(3, nullptr);
    EXPECT_EQ(again.Replay(log_.bytes.substr(0, cut)), first);
    EXPECT_EQ(again.keys(), 1u);
  }
  for (size_t at = first; at < log_.bytes.size(); ++at) {
    std::string damaged = log_.bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    RendezvousStore again(3, nullptr);
    EXPECT_EQ(again.Replay(damaged), first) << "byte " << at;
  }
}

TEST_F(Store, HostilePacketsAreRefused) {
  EXPECT_EQ(Ask(1, "short").number, static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreSet, 1, 0, 1), "v")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreSet, 2, 100, 1), "kv")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreSet, 3, 1, 7), "kv")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kStoreCas, 4, 1, ~0ull, 2), "kv")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(
      Ask(1, MakePacket(Header(rank::kStoreWait, 5, 4), std::string("\xff\xff\xff\xff", 4))).number,
      static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, MakePacket(Header(rank::kHello, 6, 1), "k")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, Set(7, std::string(kStoreKeyBytesMax + 1, 'k'), "")).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(Ask(1, Set(8, "k", std::string(kStoreValueBytesMax + 1, 'v'))).number,
            static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(store_.keys(), 0u);
}

TEST_F(Store, BytesAreLimited) {
  const std::string value(kStoreValueBytesMax, 'v');
  uint32_t request = 0;
  Answer answer;
  do {
    ++request;
    answer = Ask(1, Set(request, "key" + std::to_string(request), value));
    log_.bytes.clear();
  } while (answer.type == rank::kStoreValue && request < 10'000);
  EXPECT_EQ(answer.number, static_cast<uint64_t>(ENOSPC));
  EXPECT_LE(static_cast<int64_t>(request) * kStoreValueBytesMax,
            kStoreBytesMax + kStoreValueBytesMax);
}

}  // namespace
}  // namespace holdfast::agent
