// SPDX-License-Identifier: Apache-2.0
// The session against a keeper that the test plays: late, doubled and missing answers, an agent
// that comes back, hostile memory.
#include "client/session.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "base/rank/message.h"
#include "base/unique_fd.h"

namespace holdfast::client {
namespace {

using rank::Message;

// Answers packets on every connection by `answer`, in a thread for each.
class FakeKeeper {
 public:
  using Answer = std::function<void(int socket, const Message&, const std::string& payload)>;

  explicit FakeKeeper(Answer answer) : answer_(std::move(answer)) {
    const char* tmp = getenv("TMPDIR");
    std::string pattern = std::string(tmp != nullptr ? tmp : "/tmp") + "/holdfast-session-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    path_ = dir_ + "/sock";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.c_str(), path_.size());
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    recorder_.Reset(memfd_create("recorder", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(recorder_.get(), static_cast<off_t>(rank::RecorderBytes())), 0);
    base_ = mmap(nullptr, rank::RecorderBytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                 recorder_.get(), 0);
    rank::InitRecorder(base_, 42, 3, 1, 4);
    acceptor_ = std::thread([this] { Accept(); });
    setenv("HOLDFAST_SOCKET", path_.c_str(), 1);
    setenv("HOLDFAST_ATTEMPT", "3", 1);
  }
  ~FakeKeeper() {
    shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (UniqueFd& fd : connections_) shutdown(fd.get(), SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    munmap(base_, rank::RecorderBytes());
    unlink(path_.c_str());
    rmdir(dir_.c_str());
    unsetenv("HOLDFAST_SOCKET");
    unsetenv("HOLDFAST_ATTEMPT");
    unsetenv("HOLDFAST_RESTORE");
  }
  static void Reply(int socket, const Message& to, uint16_t type, uint64_t number,
                    const std::string& value = "") {
    Message reply;
    reply.type = type;
    reply.request = to.request;
    reply.args[0] = number;
    reply.payload_bytes = static_cast<uint32_t>(value.size());
    rank::SendMessage(socket, reply, value.data(), nullptr, 0);
  }
  rank::RecorderHeader* recorder() const { return static_cast<rank::RecorderHeader*>(base_); }
  size_t connections() {
    std::lock_guard<std::mutex> lock(mutex_);
    return connections_.size();
  }

 private:
  void Accept() {
    for (int fd; (fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      std::lock_guard<std::mutex> lock(mutex_);
      connections_.emplace_back(fd);
      threads_.emplace_back([this, fd] { Serve(fd); });
    }
  }
  void Serve(int fd) {
    std::string buffer(rank::kPayloadBytesMax, '\0');
    Message m;
    while (rank::ReceiveMessage(fd, &m, buffer.data(), buffer.size(), nullptr) == 1) {
      if (m.type != rank::kHello) {
        answer_(fd, m, buffer.substr(0, m.payload_bytes));
        continue;
      }
      Message welcome;
      welcome.type = rank::kWelcome;
      welcome.request = m.request;
      welcome.args[0] = 3;
      welcome.args[1] = 1;
      welcome.args[2] = 4;
      const int recorder = recorder_.get();
      rank::SendMessage(fd, welcome, nullptr, &recorder, 1);
    }
  }

  Answer answer_;
  std::string dir_, path_;
  UniqueFd listener_, recorder_;
  void* base_ = nullptr;
  std::mutex mutex_;
  std::vector<UniqueFd> connections_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

constexpr int64_t kTimeoutMs = 30'000;

std::unique_ptr<Session> Connected() {
  Error error;
  auto session = Session::Connect(kTimeoutMs, &error);
  EXPECT_FALSE(error) << error.message;
  return session;
}

TEST(SessionTest, DetachedWithoutASocket) {
  unsetenv("HOLDFAST_SOCKET");
  Error error;
  auto session = Session::Connect(1, &error);
  ASSERT_NE(session, nullptr);
  EXPECT_FALSE(error);
  EXPECT_TRUE(session->Detached());
  EXPECT_TRUE(session->AttemptIsCurrent());
  EXPECT_EQ(session->ShouldStop(), rank::kStopNone);
  EXPECT_FALSE(session->SnapshotReady());
  session->EnterPhase(rank::kPhaseDone, 1);
  session->FinishStep({});
  uint64_t stall = 7;
  EXPECT_FALSE(session->TakeSnapshot({}, 1, 1, true, &stall));
  EXPECT_EQ(stall, 0u);
  EXPECT_EQ(session->StoreSet("k", "v").code, ENOTCONN);
}

TEST(SessionTest, KnowsWhoItIsAndMarksItsRecorder) {
  FakeKeeper keeper([](int, const Message&, const std::string&) {});
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->job(), 42u);
  EXPECT_EQ(session->attempt(), 3u);
  EXPECT_EQ(session->rank(), 1u);
  EXPECT_EQ(session->world_size(), 4u);
  EXPECT_EQ(keeper.recorder()->pid.load(), static_cast<uint64_t>(getpid()));
  session->EnterPhase(rank::kPhaseBackward, 9, 2);
  rank::RecorderReader reader(keeper.recorder(), rank::RecorderBytes());
  rank::Progress progress;
  ASSERT_TRUE(reader.ReadProgress(&progress));
  EXPECT_EQ(progress.phase, rank::kPhaseBackward);
  EXPECT_EQ(progress.step, 9u);
  keeper.recorder()->control.attempt_current.store(4);
  keeper.recorder()->control.should_stop.store(rank::kStopPreempt);
  EXPECT_FALSE(session->AttemptIsCurrent());
  EXPECT_EQ(session->ShouldStop(), rank::kStopPreempt);
}

TEST(SessionTest, CollectivesReachTheRecorder) {
  FakeKeeper keeper([](int, const Message&, const std::string&) {});
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_TRUE(session->RecordsCollectives());
  uint32_t group = 0;
  const uint32_t ranks[] = {1, 3};
  EXPECT_EQ(session->AddGroup("g", ranks, 0, &group).code, EINVAL);
  EXPECT_FALSE(session->AddGroup("g", ranks, 2, &group));
  EXPECT_EQ(group, 1u);
  const uint64_t first = session->BeginCollective({group, rank::kAllReduce, 1, -1, 64});
  // Another thread sees it end.
  std::thread([&] { session->EndCollective(first, rank::kFailed); }).join();
  session->BeginCollective({group, rank::kSend, 1, 1, 8});
  session->EndCollective(0, rank::kFinished);
  const rank::CollectiveReader reader(keeper.recorder(), rank::RecorderBytes());
  const auto operations = reader.Operations();
  ASSERT_EQ(operations.size(), 2u);
  EXPECT_EQ(operations[0].bytes, 64u);
  EXPECT_EQ(operations[0].outcome, rank::kFailed);
  EXPECT_GT(operations[0].begin_ns, 0u);
  EXPECT_GE(operations[0].end_ns, operations[0].begin_ns);
  EXPECT_EQ(operations[1].kind, rank::kSend);
  EXPECT_EQ(operations[1].end_ns, 0u);
  while (group != 0 && group < rank::kCollectiveGroupsMax)
    ASSERT_FALSE(session->AddGroup("g", nullptr, 2, &group));
  const Error full = session->AddGroup("late", ranks, 2, &group);
  EXPECT_EQ(full.code, ENOSPC);
  EXPECT_NE(full.message.find("'late'"), std::string::npos);
  EXPECT_EQ(group, 0u);
}

// The keeper of a job that was started before the node was upgraded.
TEST(SessionTest, AKeeperWithoutCollectivesIsHarmless) {
  FakeKeeper keeper([](int, const Message&, const std::string&) {});
  keeper.recorder()->layout = 0;
  keeper.recorder()->collectives_offset = keeper.recorder()->collectives_bytes = 0;
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_FALSE(session->RecordsCollectives());
  uint32_t group = 7;
  EXPECT_FALSE(session->AddGroup("g", nullptr, 2, &group));
  EXPECT_EQ(group, 0u);
  EXPECT_EQ(session->BeginCollective({1, rank::kAllReduce, 1, -1, 64}), 0u);
  session->EndCollective(uint64_t{1} << 48 | 1, rank::kFinished);
  session->EnterPhase(rank::kPhaseForward, 2);
  EXPECT_EQ(keeper.recorder()->progress.step.load(), 2u);
}

TEST(SessionTest, StoreCallsCarryTheirArguments) {
  FakeKeeper keeper([](int socket, const Message& m, const std::string& payload) {
    const std::string key = payload.substr(0, m.args[0]), rest = payload.substr(m.args[0]);
    switch (m.type) {
      case rank::kStoreSet:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue,
                                 key == "k" && rest == "value" ? 0 : 1);
      case rank::kStoreGet:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue, 0, key + std::to_string(m.args[2]));
      case rank::kStoreAdd:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue,
                                 static_cast<uint64_t>(static_cast<int64_t>(m.args[2]) * 2));
      case rank::kStoreCas:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue, 0,
                                 rest.substr(0, m.args[1]) + "|" + rest.substr(m.args[1]));
      case rank::kStoreDelete:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue, 1);
      case rank::kStoreCheck:
        return FakeKeeper::Reply(socket, m, rank::kStoreValue,
                                 payload.size() == 4 + 1 + 4 + 2 ? 1 : 0);
      default:
        return FakeKeeper::Reply(socket, m, rank::kError, ETIMEDOUT, "waited");
    }
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_FALSE(session->StoreSet("k", "value"));
  std::string value;
  EXPECT_FALSE(session->StoreGet("name", 1234, &value));
  EXPECT_EQ(value, "name1234");
  int64_t sum = 0;
  EXPECT_FALSE(session->StoreAdd("n", -21, &sum));
  EXPECT_EQ(sum, -42);
  EXPECT_FALSE(session->StoreCompareSet("k", "old", "new", &value));
  EXPECT_EQ(value, "old|new");
  bool yes = false;
  EXPECT_FALSE(session->StoreDelete("k", &yes));
  EXPECT_TRUE(yes);
  yes = false;
  EXPECT_FALSE(session->StoreCheck({"a", "bb"}, &yes));
  EXPECT_TRUE(yes);
  const Error error = session->StoreWait({"a"}, 5);
  EXPECT_EQ(error.code, ETIMEDOUT);
  EXPECT_EQ(error.message, "waited");
}

TEST(SessionTest, LimitsAreCheckedBeforeAnythingIsSent) {
  FakeKeeper keeper(
      [](int, const Message&, const std::string&) { ADD_FAILURE() << "a packet was sent"; });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  std::string value;
  EXPECT_EQ(session->StoreSet("", "v").code, EINVAL);
  EXPECT_EQ(session->StoreSet(std::string(1025, 'k'), "v").code, EINVAL);
  EXPECT_EQ(session->StoreSet("k", std::string(61'441, 'v')).code, EINVAL);
  EXPECT_EQ(
      session->StoreCompareSet("k", std::string(40'000, 'v'), std::string(40'000, 'v'), &value)
          .code,
      EINVAL);
  EXPECT_EQ(session->StoreWait(std::vector<std::string>(100, std::string(1000, 'k')), 1).code,
            EINVAL);
}

TEST(SessionTest, AnAgentThatComesBackGetsTheRequestAgain) {
  int seen = 0;
  uint32_t first_request = 0;
  FakeKeeper keeper([&](int socket, const Message& m, const std::string& payload) {
    EXPECT_EQ(payload, "kv");
    if (++seen == 1) {
      first_request = m.request;
      Message resend;
      resend.type = rank::kResend;
      rank::SendMessage(socket, resend, nullptr, nullptr, 0);
      return;
    }
    EXPECT_EQ(m.request, first_request);
    FakeKeeper::Reply(socket, m, rank::kStoreValue, 0);
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_FALSE(session->StoreSet("k", "v"));
  EXPECT_EQ(seen, 2);
}

TEST(SessionTest, ALateAnswerIsNotTakenForAnother) {
  FakeKeeper keeper([](int socket, const Message& m, const std::string& payload) {
    if (payload == "slow") return;  // answered with the next one
    Message late = m;
    late.request = m.request - 1;
    FakeKeeper::Reply(socket, late, rank::kStoreValue, 0, "of the slow one");
    FakeKeeper::Reply(socket, m, rank::kStoreValue, 0, "right");
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  std::string value;
  EXPECT_EQ(session->StoreGet("slow", -5'000, &value).code, ETIMEDOUT);
  EXPECT_FALSE(session->StoreGet("fast", kTimeoutMs, &value));
  EXPECT_EQ(value, "right");
}

TEST(SessionTest, OneThreadThatWaitsHoldsNobodyUp) {
  std::mutex mutex;
  int waiting_socket = -1;
  Message waiting;
  FakeKeeper keeper([&](int socket, const Message& m, const std::string& payload) {
    std::lock_guard<std::mutex> lock(mutex);
    if (payload == "wait") {
      waiting_socket = socket;
      waiting = m;
      return;
    }
    FakeKeeper::Reply(socket, m, rank::kStoreValue, 0);
    if (waiting_socket >= 0)
      FakeKeeper::Reply(waiting_socket, waiting, rank::kStoreValue, 0, "set by the other");
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  std::string value;
  Error error;
  std::thread waiter([&] { error = session->StoreGet("wait", kTimeoutMs, &value); });
  for (bool there = false; !there;) {
    std::lock_guard<std::mutex> lock(mutex);
    there = waiting_socket >= 0;
  }
  EXPECT_FALSE(session->StoreSet("wait", "x"));
  waiter.join();
  EXPECT_FALSE(error) << error.message;
  EXPECT_EQ(value, "set by the other");
  EXPECT_EQ(keeper.connections(), 2u);
}

TEST(SessionTest, AnOlderAttemptIsToldSo) {
  FakeKeeper keeper([](int socket, const Message& m, const std::string&) {
    FakeKeeper::Reply(socket, m, rank::kError, ESTALE, "attempt 3 is over");
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->StoreSet("k", "v").code, ESTALE);
  EXPECT_EQ(session->WantArena(4096, 2, 1).code, ESTALE);
}

TEST(SessionTest, AKeeperThatIsGoneIsAnError) {
  FakeKeeper keeper(
      [](int socket, const Message&, const std::string&) { shutdown(socket, SHUT_RDWR); });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->StoreSet("k", "v").code, ECONNRESET);
}

TEST(SessionTest, AnArenaThatIsNoneIsRefused) {
  FakeKeeper keeper([](int socket, const Message& m, const std::string&) {
    UniqueFd fd(memfd_create("bad", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(fd.get(), 8192), 0);
    Message reply;
    reply.type = rank::kArena;
    reply.request = m.request;
    const int raw = fd.get();
    rank::SendMessage(socket, reply, nullptr, &raw, m.args[1] == 2 ? 1 : 0);
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_NE(session->WantArena(4096, 2, 1).message.find("magic"), std::string::npos);
  EXPECT_EQ(session->WantArena(4096, 1, 1).code, EPROTO);
}

// The agent was away, so a snapshot that waits to be written could be superseded; then it comes
// back and takes that very buffer before the rank does.
TEST(SessionTest, ASnapshotWaitsForABufferThatAReturningAgentTook) {
  rank::ArenaHeader layout;
  const uint64_t bytes = rank::ArenaLayout(4096, 1, 2, &layout);
  layout.job = 42;
  layout.rank = 1;
  layout.world_size = 4;
  const UniqueFd memory(memfd_create("arena", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(base, MAP_FAILED);
  auto* arena = new (base) rank::ArenaHeader;
  memcpy(base, &layout, sizeof layout);
  FakeKeeper keeper([&](int socket, const Message& m, const std::string&) {
    if (m.type != rank::kWantArena) return;
    Message reply;
    reply.type = rank::kArena;
    reply.request = m.request;
    const int raw = memory.get();
    rank::SendMessage(socket, reply, nullptr, &raw, 1);
  });
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  ASSERT_FALSE(session->WantArena(4096, 2, 1));
  keeper.recorder()->control.attempt_current.store(3);
  std::vector<float> data(16, 1.0f);
  ckpt::TensorView view;
  view.name = "t";
  view.global_shape = view.box_size = {16};
  view.box_offset = {0};
  view.data = data.data();
  view.bytes = 64;
  uint64_t stall_ns = 0;
  ASSERT_FALSE(session->TakeSnapshot({view}, 1, 1, true, &stall_ns));
  ASSERT_FALSE(session->TakeSnapshot({view}, 2, 2, false, &stall_ns));
  ASSERT_TRUE(session->SnapshotReady());
  rank::BufferHeader* old = &arena->buffer[arena->buffer[0].step == 1 ? 0 : 1];
  uint32_t sealed = rank::kBufferSealed;
  ASSERT_TRUE(old->state.compare_exchange_strong(sealed, rank::kBufferWriting));
  std::thread agent([&] {
    poll(nullptr, 0, 50);  // a save that takes its time
    old->persisted.store(1);
    old->state.store(rank::kBufferSealed);
  });
  EXPECT_EQ(session->TakeSnapshot({view}, 3, 3, false, &stall_ns).message, "");
  EXPECT_EQ(old->step, 3u);
  agent.join();
  // Whose attempt is over waits for nobody.
  for (uint32_t i = 0; i < 2; ++i) arena->buffer[i].state.store(rank::kBufferWriting);
  keeper.recorder()->control.attempt_current.store(4);
  EXPECT_EQ(session->TakeSnapshot({view}, 4, 4, false, &stall_ns).code, EAGAIN);
  munmap(base, bytes);
}

TEST(SessionTest, TheEnvironmentIsChecked) {
  FakeKeeper keeper([](int, const Message&, const std::string&) {});
  Error error;
  setenv("HOLDFAST_ATTEMPT", "x", 1);
  EXPECT_EQ(Session::Connect(kTimeoutMs, &error), nullptr);
  EXPECT_EQ(error.code, EINVAL);
  EXPECT_NE(error.message.find("HOLDFAST_ATTEMPT='x'"), std::string::npos);
  setenv("HOLDFAST_ATTEMPT", "3", 1);
  setenv("HOLDFAST_RESTORE", "snapshot:7", 1);
  EXPECT_EQ(Session::Connect(kTimeoutMs, &error), nullptr);
  EXPECT_NE(error.message.find("snapshot:7"), std::string::npos);
  setenv("HOLDFAST_RESTORE", "snapshot:7.2", 1);
  auto session = Connected();
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->RestoreStep(), 7u);
  setenv("HOLDFAST_SOCKET", "/no/such/socket", 1);
  EXPECT_EQ(Session::Connect(kTimeoutMs, &error), nullptr);
  EXPECT_EQ(error.code, ENOENT);
}

}  // namespace
}  // namespace holdfast::client
