// SPDX-License-Identifier: Apache-2.0
#include "agent/tcp_store/store_core.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tcp_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename T>
std::string N(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
std::string S(std::string_view text) { return N<uint64_t>(text.size()) + std::string(text); }
std::string Q(Query query, const std::string& rest = "") {
  return std::string(1, static_cast<char>(query)) + rest;
}
std::string Keys(const std::vector<std::string>& keys) {
  std::string out = N<uint64_t>(keys.size());
  for (const std::string& key : keys) out += S(key);
  return out;
}
std::string Set(const std::string& key, const std::string& value) {
  return Q(Query::kSet, S(key) + S(value));
}
std::string Wait(const std::vector<std::string>& keys) { return Q(Query::kWait, Keys(keys)); }
const std::string kHello = Q(Query::kValidate, N<uint32_t>(kMagic));
const std::string kGo = N<uint8_t>(kStopWaiting);

class StoreCoreTest : public ::testing::Test {
 protected:
  StoreCoreTest() {
    for (StoreCore::Connection c : {1, 2, 3}) Send(c, kHello);
  }

  // What each connection gets because of it, in order.
  std::map<StoreCore::Connection, std::string> Send(StoreCore::Connection from,
                                                    const std::string& bytes) {
    std::vector<StoreCore::Reply> replies;
    good_ = core_.Receive(from, bytes, &replies, &error_);
    std::map<StoreCore::Connection, std::string> out;
    for (const auto& reply : replies) out[reply.to] += reply.bytes;
    return out;
  }
  std::string Own(const std::string& bytes) { return Send(1, bytes)[1]; }

  StoreCore core_;
  bool good_ = false;
  std::string error_;
};

TEST_F(StoreCoreTest, SetAndGet) {
  EXPECT_EQ(Own(Set("k", "v")), "");
  EXPECT_EQ(Own(Q(Query::kGet, S("k"))), S("v"));
  EXPECT_EQ(Own(Q(Query::kGet, S("missing"))), S(""));
  EXPECT_EQ(Own(Set("k", "") + Q(Query::kGet, S("k"))), S(""));
  EXPECT_EQ(Own(Q(Query::kNumKeys)), N<int64_t>(1));
}

TEST_F(StoreCoreTest, AddKeepsDecimalText) {
  EXPECT_EQ(Own(Q(Query::kAdd, S("n") + N<int64_t>(5))), N<int64_t>(5));
  EXPECT_EQ(Own(Q(Query::kAdd, S("n") + N<int64_t>(-7))), N<int64_t>(-2));
  EXPECT_EQ(Own(Q(Query::kGet, S("n"))), S("-2"));
  Own(Set("text", "abc"));
  Own(Q(Query::kAdd, S("text") + N<int64_t>(1)));
  EXPECT_FALSE(good_);
  EXPECT_THAT(error_, HasSubstr("no number"));
}

TEST_F(StoreCoreTest, AddThatOverflowsIsRefused) {
  Own(Q(Query::kAdd, S("n") + N<int64_t>(INT64_MAX)));
  Own(Q(Query::kAdd, S("n") + N<int64_t>(1)));
  EXPECT_FALSE(good_);
}

TEST_F(StoreCoreTest, CompareSet) {
  const auto cas = [](const char* key, const char* expected, const char* wanted) {
    return Q(Query::kCompareSet, S(key) + S(expected) + S(wanted));
  };
  EXPECT_EQ(Own(cas("k", "wrong", "x")), S("wrong")) << "the real server says what was expected";
  EXPECT_EQ(Own(Q(Query::kCheck, Keys({"k"}))), N<uint8_t>(kNotReady));
  EXPECT_EQ(Own(cas("k", "", "first")), S("first"));
  EXPECT_EQ(Own(cas("k", "other", "x")), S("first"));
  EXPECT_EQ(Own(cas("k", "first", "second")), S("second"));
}

TEST_F(StoreCoreTest, CheckDeleteAppendAndMany) {
  EXPECT_EQ(Own(Q(Query::kMultiSet, N<uint64_t>(2) + S("a") + S("1") + S("b") + S("2"))), "");
  EXPECT_EQ(Own(Q(Query::kMultiGet, Keys({"b", "a", "c"}))), S("2") + S("1") + S(""));
  EXPECT_EQ(Own(Q(Query::kCheck, Keys({"a", "b"}))), N<uint8_t>(kReady));
  EXPECT_EQ(Own(Q(Query::kCheck, Keys({"a", "c"}))), N<uint8_t>(kNotReady));
  EXPECT_EQ(Own(Q(Query::kDelete, S("a"))), N<int64_t>(1));
  EXPECT_EQ(Own(Q(Query::kDelete, S("a"))), N<int64_t>(0));
  EXPECT_EQ(Own(Q(Query::kAppend, S("b") + S("34"))), "");
  EXPECT_EQ(Own(Q(Query::kAppend, S("new") + S("x"))), "");
  EXPECT_EQ(Own(Q(Query::kGet, S("b")) + Q(Query::kGet, S("new"))), S("234") + S("x"));
  const std::string listed = Own(Q(Query::kListKeys));
  EXPECT_TRUE(listed == N<int64_t>(2) + S("b") + S("new") ||
              listed == N<int64_t>(2) + S("new") + S("b"));
  EXPECT_EQ(Own(Q(Query::kPing, N<uint32_t>(77))), N<uint32_t>(77));
}

TEST_F(StoreCoreTest, AWaitEndsWhenItsLastKeyIsThere) {
  EXPECT_EQ(Own(Wait({"a", "b", "a"})), "");
  EXPECT_THAT(Send(2, Set("a", "1")), IsEmpty());
  EXPECT_EQ(Send(2, Set("b", "1"))[1], kGo);
  EXPECT_EQ(Own(Wait({"a", "b"})), kGo) << "both are there already";
}

TEST_F(StoreCoreTest, AllThatMakesAKeyWakes) {
  const std::string makers[] = {Set("k0", ""),
                                Q(Query::kAdd, S("k1") + N<int64_t>(1)),
                                Q(Query::kAppend, S("k2") + S("")),
                                Q(Query::kCompareSet, S("k3") + S("") + S("x")),
                                Q(Query::kMultiSet, N<uint64_t>(1) + S("k4") + S("")),
                                Q(Query::kQueuePush, S("k5") + S("x"))};
  for (size_t i = 0; i < std::size(makers); ++i) {
    EXPECT_EQ(Own(Wait({"k" + std::to_string(i)})), "");
    EXPECT_EQ(Send(2, makers[i])[1], kGo) << i;
  }
}

TEST_F(StoreCoreTest, ACancelledOrDisconnectedWaitIsForgotten) {
  Own(Wait({"a"}));
  EXPECT_EQ(Own(Q(Query::kCancelWait)), N<uint8_t>(kWaitCancelled));
  EXPECT_THAT(Send(2, Set("a", "1")), IsEmpty());
  Own(Wait({"b"}));
  core_.Disconnected(1);
  EXPECT_THAT(Send(2, Set("b", "1")), IsEmpty());
}

TEST_F(StoreCoreTest, QueuesAreFirstInFirstOutAndWakeOneEach) {
  const std::string push = Q(Query::kQueuePush, S("q") + S("x"));
  Own(Wait({"q"}));
  Send(2, Wait({"q"}));
  EXPECT_EQ(Send(3, push).size(), 1u);
  EXPECT_EQ(Send(3, Q(Query::kQueuePush, S("q") + S("y"))).size(), 1u);
  EXPECT_EQ(Own(Q(Query::kQueueLen, S("q"))), N<int64_t>(2));
  EXPECT_EQ(Own(Q(Query::kQueuePop, S("q"))), N<int64_t>(2) + S("x"));
  EXPECT_EQ(Own(Q(Query::kQueuePop, S("q"))), N<int64_t>(1) + S("y"));
  EXPECT_EQ(Own(Q(Query::kQueuePop, S("q"))), N<int64_t>(0));
  EXPECT_EQ(Own(Q(Query::kQueueLen, S("never"))), N<int64_t>(0));
  EXPECT_EQ(core_.held_bytes(), 0u);
}

TEST_F(StoreCoreTest, AWaitForAQueueAndAKeyEndsInEitherOrder) {
  const std::string push = Q(Query::kQueuePush, S("q") + S("x"));
  Own(Wait({"q", "k"}));
  EXPECT_THAT(Send(2, push), IsEmpty());
  EXPECT_EQ(Send(2, Set("k", "1"))[1], kGo);
  EXPECT_THAT(Send(2, push), IsEmpty()) << "it waits for nothing any more";
}

TEST_F(StoreCoreTest, ABarrierLetsAllGoWithTheLast) {
  const std::string arrive = Q(Query::kBarrier, S("b") + N<int64_t>(3));
  EXPECT_EQ(Own(arrive), "");
  EXPECT_THAT(Send(2, arrive), IsEmpty());
  const auto all = Send(3, arrive);
  EXPECT_EQ(all.size(), 3u);
  for (const auto& [connection, bytes] : all) EXPECT_EQ(bytes, kGo) << connection;
  EXPECT_EQ(Own(Q(Query::kGet, S("b"))), S("3"));
}

TEST_F(StoreCoreTest, ABarrierThatIsLeftDoesNotWakeWhoLeft) {
  const std::string arrive = Q(Query::kBarrier, S("b") + N<int64_t>(2));
  Own(arrive);
  EXPECT_EQ(Own(Q(Query::kCancelWait)), N<uint8_t>(kWaitCancelled));
  const auto woken = Send(2, arrive);
  EXPECT_EQ(woken.size(), 1u);
  EXPECT_EQ(woken.begin()->first, 2u);
}

// Every request, cut at every byte: nothing is answered or changed early, and all comes out the
// same.
TEST_F(StoreCoreTest, RequestsMayArriveInAnyPieces) {
  const std::string all =
      Set("a", "1") + Q(Query::kGet, S("a")) + Q(Query::kAdd, S("n") + N<int64_t>(3)) +
      Q(Query::kCompareSet, S("a") + S("1") + S("2")) +
      Q(Query::kMultiSet, N<uint64_t>(1) + S("m") + S("x")) +
      Q(Query::kMultiGet, Keys({"a", "m"})) + Q(Query::kCheck, Keys({"a"})) + Wait({"a"}) +
      Q(Query::kQueuePush, S("q") + S("z")) + Q(Query::kQueuePop, S("q")) +
      Q(Query::kPing, N<uint32_t>(9)) + Q(Query::kAppend, S("a") + S("3")) +
      Q(Query::kDelete, S("m")) + Q(Query::kNumKeys) + Q(Query::kBarrier, S("b") + N<int64_t>(1)) +
      Q(Query::kCancelWait);
  StoreCore once;
  std::vector<StoreCore::Reply> replies;
  ASSERT_TRUE(once.Receive(1, kHello + all, &replies, &error_)) << error_;
  std::string expected;
  for (const auto& reply : replies) expected += reply.bytes;
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    StoreCore core;
    replies.clear();
    ASSERT_TRUE(core.Receive(1, kHello + all.substr(0, cut), &replies, &error_)) << cut;
    ASSERT_TRUE(core.Receive(1, all.substr(cut), &replies, &error_)) << cut;
    std::string got;
    for (const auto& reply : replies) got += reply.bytes;
    EXPECT_EQ(got, expected) << "cut at " << cut;
  }
  StoreCore slow;
  replies.clear();
  for (const char c : kHello + all) ASSERT_TRUE(slow.Receive(1, {&c, 1}, &replies, &error_));
  std::string got;
  for (const auto& reply : replies) got += reply.bytes;
  EXPECT_EQ(got, expected) << "byte by byte";
}

TEST_F(StoreCoreTest, WhoIsNoClientIsSentAway) {
  const std::pair<std::string, const char*> cases[] = {
      {"GET / HTTP/1.1\r\n", "not a client of TCPStore"},
      {Set("k", "v"), "one of a PyTorch before 2.2"},
      {Q(Query::kValidate, N<uint32_t>(1)), "the magic number is wrong"},
      {kHello + "\x63", "request type 99 is not known to this version"},
      {kHello + "\x63", "TORCHELASTIC_USE_AGENT_STORE=False and a MASTER_PORT of its own"},
      {kHello + Q(Query::kGet, N<uint64_t>(kKeyBytesMax + 1)), "a key of 65537 bytes"},
      {kHello + Q(Query::kSet, S("k") + N<uint64_t>(UINT64_MAX)),
       "a value of 18446744073709551615"},
      {kHello + Q(Query::kWait, N<uint64_t>(kKeysPerRequestMax + 1)), "keys, at most"},
  };
  for (const auto& [bytes, text] : cases) {
    Send(9, bytes);
    EXPECT_FALSE(good_) << text;
    EXPECT_THAT(error_, HasSubstr(text));
  }
  EXPECT_EQ(core_.keys(), 0u);
  EXPECT_EQ(core_.held_bytes(), 0u);
}

TEST_F(StoreCoreTest, HeldBytesAreCountedDownToNothing) {
  Own(Set("key", "value") + Q(Query::kAppend, S("key") + S("!!")) + Set("key", "x"));
  EXPECT_EQ(core_.held_bytes(), 4u + kEntryBytes);
  Own(Q(Query::kAdd, S("n") + N<int64_t>(100)) + Q(Query::kDelete, S("n")) +
      Q(Query::kDelete, S("key")));
  EXPECT_EQ(core_.held_bytes(), 0u);
  Own(Q(Query::kSet, S("half")));
  EXPECT_EQ(core_.input_bytes(), 13u);
  Send(2, Wait({"a", "b"}));
  EXPECT_EQ(core_.held_bytes(), 2 * (1 + kEntryBytes));
  core_.Disconnected(1);
  core_.Disconnected(2);
  EXPECT_EQ(core_.held_bytes(), 0u);
  EXPECT_EQ(core_.input_bytes(), 0u);
  Send(3, Wait({"a", "b"}));
  Send(3, Q(Query::kCancelWait));
  EXPECT_EQ(core_.held_bytes(), 0u);
}

TEST_F(StoreCoreTest, AddTakesTheNumberAtTheFrontAsTheRealServerDoes) {
  const auto add = [this](const char* text) {
    return Own(Set("n", text) + Q(Query::kAdd, S("n") + N<int64_t>(1)));
  };
  EXPECT_EQ(add(" 12"), N<int64_t>(13));
  EXPECT_EQ(add("+7"), N<int64_t>(8));
  EXPECT_EQ(add("-3 apples"), N<int64_t>(-2));
  EXPECT_EQ(add("1e9"), N<int64_t>(2));
  for (const char* text : {"", " ", "+-3", "x1", "99999999999999999999"}) {
    Send(9, kHello + Set("n", text) + Q(Query::kAdd, S("n") + N<int64_t>(1)));
    EXPECT_FALSE(good_) << text;
  }
}

// What a single small message may make the core hold.
TEST_F(StoreCoreTest, RepliesComeInBatchesWhenManyAreAskedForAtOnce) {
  const std::string value(kReplyBatchBytes, 'v');
  std::string gets;
  for (int i = 0; i < 10; ++i) gets += Q(Query::kGet, S("k"));
  std::string got = Own(Set("k", value) + gets);
  EXPECT_LE(got.size(), 2 * (value.size() + 8));
  EXPECT_TRUE(core_.HasMore(1));
  for (int calls = 1; core_.HasMore(1); ++calls) {
    ASSERT_LT(calls, 11);
    const std::string more = Own("");
    EXPECT_LE(more.size(), 2 * (value.size() + 8));
    got += more;
  }
  EXPECT_EQ(got.size(), 10 * (value.size() + 8));
}

TEST_F(StoreCoreTest, WhoAsksForTooMuchInOneReplyIsRefused) {
  StoreCore core({.held_bytes = 1 << 20, .request_bytes = 1000, .reply_bytes = 300});
  std::vector<StoreCore::Reply> replies;
  ASSERT_TRUE(core.Receive(1, kHello + Set("k", std::string(100, 'v')), &replies, &error_));
  EXPECT_TRUE(core.Receive(1, Q(Query::kMultiGet, Keys({"k", "k"})), &replies, &error_));
  EXPECT_FALSE(core.Receive(1, Q(Query::kMultiGet, Keys({"k", "k", "k"})), &replies, &error_));
  EXPECT_EQ(error_, "a multi_get of 324 bytes, at most 300");
  ASSERT_TRUE(core.Receive(2, kHello, &replies, &error_));
  EXPECT_FALSE(core.Receive(2,
                            Q(Query::kMultiSet, N<uint64_t>(2) + S("a") + S(std::string(900, 'x')) +
                                                    S("b") + N<uint64_t>(100)),
                            &replies, &error_))
      << "refused before the rest comes";
  EXPECT_THAT(error_, HasSubstr("a request of"));
  EXPECT_EQ(core.keys(), 1u);
}

TEST_F(StoreCoreTest, WhoFillsTheStoreIsRefusedAndTheOthersGoOn) {
  StoreCore core({.held_bytes = 4096, .input_bytes = 8192});
  std::vector<StoreCore::Reply> replies;
  for (StoreCore::Connection c : {1, 2, 3}) {
    ASSERT_TRUE(core.Receive(c, kHello + Set("k", "v"), &replies, &error_));
  }
  ASSERT_TRUE(core.Receive(2, Q(Query::kSet, S("x") + N<uint64_t>(99'999)), &replies, &error_));
  EXPECT_FALSE(core.Receive(2, std::string(9000, 'x'), &replies, &error_)) << "half a request";
  EXPECT_THAT(error_, HasSubstr("requests that are not whole"));
  EXPECT_EQ(core.input_bytes(), 0u);
  size_t fitted = 0;
  while (core.Receive(3, Q(Query::kQueuePush, S("") + S("")), &replies, &error_)) ++fitted;
  EXPECT_THAT(error_, HasSubstr("the store of this job would hold more than"));
  EXPECT_EQ(fitted, 4096 / kEntryBytes - 2) << "not even nothing is free";
  EXPECT_LE(core.held_bytes(), 4096u);
  replies.clear();
  EXPECT_TRUE(core.Receive(1, Wait({"k"}) + Q(Query::kGet, S("k")), &replies, &error_)) << error_;
  EXPECT_EQ(replies.size(), 2u);
  const std::string makers[] = {Set("new", ""),
                                Q(Query::kCompareSet, S("new") + S("") + S("")),
                                Q(Query::kAdd, S("new") + N<int64_t>(1)),
                                Q(Query::kAppend, S("new") + S("")),
                                Q(Query::kMultiSet, N<uint64_t>(1) + S("new") + S("")),
                                Q(Query::kBarrier, S("new") + N<int64_t>(2)),
                                Wait({"new"})};
  for (const std::string& maker : makers) {
    EXPECT_FALSE(core.Receive(9, kHello + maker, &replies, &error_)) << int{maker[0]};
  }
  EXPECT_EQ(core.keys(), 1u);
}

TEST_F(StoreCoreTest, AnAppendedValueHasTheLimitOfAValue) {
  StoreCore core({.value_bytes = 10});
  std::vector<StoreCore::Reply> replies;
  const std::string five = Q(Query::kAppend, S("k") + S("12345"));
  EXPECT_TRUE(core.Receive(1, kHello + five + five, &replies, &error_)) << error_;
  EXPECT_FALSE(core.Receive(1, Q(Query::kAppend, S("k") + S("6")), &replies, &error_));
  EXPECT_EQ(error_, "a value of 11 bytes, at most 10");
}

TEST_F(StoreCoreTest, ALongListInSmallPiecesIsLookedAtOnce) {
  std::string all = Q(Query::kMultiSet, N<uint64_t>(kKeysPerRequestMax));
  for (size_t i = 0; i < kKeysPerRequestMax; ++i) all += S(std::to_string(i)) + S("");
  for (size_t at = 0; at < all.size(); at += 25) Own(all.substr(at, 25));
  EXPECT_TRUE(good_);
  EXPECT_EQ(core_.keys(), kKeysPerRequestMax);
}

}  // namespace
}  // namespace holdfast::tcp_store
