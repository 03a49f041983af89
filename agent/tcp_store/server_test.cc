// SPDX-License-Identifier: Apache-2.0
#include "agent/tcp_store/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace holdfast::tcp_store {
namespace {

constexpr int kDeadlineMs = 30'000;

std::string Text(std::string_view text) {
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + std::string(text);
}

class Client {
 public:
  explicit Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const uint32_t magic = kMagic;
    Send(std::string(1, '\0') + std::string(reinterpret_cast<const char*>(&magic), sizeof magic));
  }
  void Send(const std::string& bytes) {
    // Who is refused may be closed already.
    ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Set(const std::string& key, const std::string& value) {
    Send("\x01" + Text(key) + Text(value));
  }
  void Get(const std::string& key) { Send("\x03" + Text(key)); }
  void Wait(const std::string& key) {
    const uint64_t one = 1;
    Send("\x06" + std::string(reinterpret_cast<const char*>(&one), sizeof one) + Text(key));
  }
  // Empty at the end of the connection or at the deadline.
  std::string Read(size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
      char block[65536];
      pollfd ready = {fd_.get(), POLLIN, 0};
      if (::poll(&ready, 1, kDeadlineMs) != 1) return "";
      const ssize_t got = ::recv(fd_.get(), block, std::min(sizeof block, bytes - out.size()), 0);
      if (got <= 0) return "";
      out.append(block, static_cast<size_t>(got));
    }
    return out;
  }
  bool Closed() {
    char c = 0;
    pollfd ready = {fd_.get(), POLLIN, 0};
    return ::poll(&ready, 1, kDeadlineMs) == 1 && ::recv(fd_.get(), &c, 1, 0) <= 0;
  }
  bool ClosedAfterData() {
    while (true) {
      char block[65536];
      pollfd ready = {fd_.get(), POLLIN, 0};
      if (::poll(&ready, 1, kDeadlineMs) != 1) return false;
      if (::recv(fd_.get(), block, sizeof block, 0) <= 0) return true;
    }
  }

 private:
  UniqueFd fd_;
};

class ServerTest : public ::testing::Test {
 protected:
  explicit ServerTest(ServerLimits limits = {}) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), plain, size), 0);
    EXPECT_EQ(::listen(listener.get(), 128), 0);
    EXPECT_EQ(::getsockname(listener.get(), plain, &size), 0);
    port_ = ntohs(address.sin_port);
    server_ = std::make_unique<Server>(std::move(listener), stop_.get(), limits);
    thread_ = std::thread([this] { result_ = server_->Run(); });
  }
  ~ServerTest() override {
    const uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
    EXPECT_EQ(result_, 0);
  }

  UniqueFd stop_;
  uint16_t port_ = 0;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  int result_ = -1;
};

TEST_F(ServerTest, OneClientsSetEndsAnothersWait) {
  Client waits(port_), sets(port_);
  waits.Wait("k");
  sets.Set("k", "value");
  EXPECT_EQ(waits.Read(1), std::string(1, '\0'));
  waits.Get("k");
  EXPECT_EQ(waits.Read(13), Text("value"));
}

TEST_F(ServerTest, ManyClientsAtOnce) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(std::make_unique<Client>(port_));
  for (auto& client : clients) client->Wait("go");
  clients[0]->Set("go", "");
  for (auto& client : clients) EXPECT_EQ(client->Read(1), std::string(1, '\0'));
}

TEST_F(ServerTest, LargeValuesAndAClientThatReadsLateHoldUpNobody) {
  const std::string value(8 << 20, 'v');
  Client late(port_), other(port_);
  late.Set("big", value);
  for (int i = 0; i < 8; ++i) late.Get("big");  // far more than socket buffers hold
  other.Set("k", "x");
  other.Get("k");
  EXPECT_EQ(other.Read(9), Text("x"));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(late.Read(8 + value.size()), Text(value)) << i;
}

TEST_F(ServerTest, WhoSpeaksNonsenseIsClosedAndTheOthersAreServed) {
  Client good(port_), bad(port_);
  bad.Send("\x7f");
  EXPECT_TRUE(bad.Closed());
  good.Set("k", "x");
  good.Get("k");
  EXPECT_EQ(good.Read(9), Text("x"));
}

TEST_F(ServerTest, AClientThatLeavesInTheMiddleOfARequestDoesNoHarm) {
  {
    Client leaves(port_);
    leaves.Send("\x01" + Text("k").substr(0, 8));
    Client waits(port_);
    waits.Wait("k");
  }
  Client other(port_);
  other.Set("k", "x");
  other.Get("k");
  EXPECT_EQ(other.Read(9), Text("x"));
}

TEST_F(ServerTest, WithoutDescriptorsThoseThereAreServedAndTheRestComeLater) {
  Client there(port_);
  there.Set("k", "x");
  there.Get("k");
  EXPECT_EQ(there.Read(9), Text("x"));
  auto waiting = std::make_unique<Client>(port_);
  waiting->Get("k");
  EXPECT_EQ(waiting->Read(9), Text("x"));
  ::testing::internal::CaptureStderr();
  // The client's own socket is made first; then there is no number left for accept.
  UniqueFd spare(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(spare.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  EXPECT_EQ(::connect(spare.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  // Long enough for several tries of accept, and busy: neither may make it tell the same again.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(350);
  while (std::chrono::steady_clock::now() < end) {
    there.Get("k");
    EXPECT_EQ(there.Read(9), Text("x")) << "who is there is served";
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  Client later(port_);
  later.Get("k");
  EXPECT_EQ(later.Read(9), Text("x"));
}

// One read may ask for any amount of replies: they are made as they are read.
TEST_F(ServerTest, WhoAsksForFarMoreThanItReadsCostsLittle) {
  const std::string value(4 << 20, 'v');
  Client greedy(port_), other(port_);
  greedy.Set("big", value);
  greedy.Get("big");
  EXPECT_EQ(greedy.Read(8 + value.size()), Text(value));
  std::string gets;
  for (int i = 0; i < 5000; ++i) gets += "\x03" + Text("big");  // 20 GiB of replies
  greedy.Send(gets);
  for (int i = 0; i < 100; ++i) {
    other.Set("k", "x");
    other.Get("k");
    EXPECT_EQ(other.Read(9), Text("x"));
  }
  rusage usage = {};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 1 << 20) << "KiB";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(greedy.Read(8 + value.size()), Text(value)) << i;
}

TEST_F(ServerTest, AManyGigabyteMultiGetIsRefused) {
  Client greedy(port_), other(port_);
  greedy.Set("big", std::string(4 << 20, 'v'));
  const uint64_t count = 1000;
  std::string request = "\x0a" + std::string(reinterpret_cast<const char*>(&count), sizeof count);
  for (uint64_t i = 0; i < count; ++i) request += Text("big");
  greedy.Send(request);
  EXPECT_TRUE(greedy.Closed());
  other.Set("k", "x");
  other.Get("k");
  EXPECT_EQ(other.Read(9), Text("x"));
}

class SmallServerTest : public ServerTest {
 protected:
  SmallServerTest() : ServerTest({.connections = 2, .output_bytes = 8 << 20, .core = {}}) {}
};

TEST_F(SmallServerTest, TheClientTooManyIsRefusedAndThereIsRoomOnceOneLeaves) {
  auto first = std::make_unique<Client>(port_);
  Client second(port_);
  for (Client* client : {first.get(), &second}) {
    client->Set("k", "x");
    client->Get("k");
    EXPECT_EQ(client->Read(9), Text("x"));
  }
  {
    Client third(port_);
    EXPECT_TRUE(third.Closed());
  }
  first.reset();
  // The server learns of the end and of the next client in either order.
  for (bool served = false; !served;) {
    Client next(port_);
    next.Get("k");
    served = next.Read(9) == Text("x");
  }
}

TEST_F(SmallServerTest, WhoseReplyIsOneTooManyForAllIsCutOff) {
  Client late(port_), other(port_);
  late.Set("big", std::string(32 << 20, 'v'));
  late.Set("k", "x");
  late.Get("k");
  EXPECT_EQ(late.Read(9), Text("x"));
  late.Get("big");
  for (int i = 0; i < 100; ++i) {  // while it does not read, the server comes to its request
    other.Get("k");
    EXPECT_EQ(other.Read(9), Text("x"));
  }
  EXPECT_TRUE(late.ClosedAfterData());
}

}  // namespace
}  // namespace holdfast::tcp_store
