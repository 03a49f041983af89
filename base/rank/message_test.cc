// SPDX-License-Identifier: Apache-2.0
#include "base/rank/message.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace holdfast::rank {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class MessageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    near_ = pair[0];
    far_ = pair[1];
  }
  void TearDown() override {
    if (near_ >= 0) close(near_);
    if (far_ >= 0) close(far_);
  }
  // What ReceiveMessage says to a packet of these raw bytes.
  int ReceiveRaw(const std::string& bytes) {
    EXPECT_EQ(send(near_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_);
  }

  int near_ = -1, far_ = -1;
  Message got_;
  Descriptors fds_;
  char payload_[kPayloadBytesMax];
};

std::string Header(const Message& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

TEST_F(MessageTest, HeaderAndPayloadArriveUnchanged) {
  Message sent;
  sent.type = kStoreSet;
  sent.attempt = 3;
  sent.request = 7;
  sent.args[0] = 3;
  sent.args[1] = 5;
  sent.payload_bytes = 8;
  ASSERT_EQ(SendMessage(near_, sent, "keyvalue", nullptr, 0), 0);
  ASSERT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), 1);
  EXPECT_EQ(Header(got_), Header(sent));
  EXPECT_EQ(std::string(payload_, 8), "keyvalue");
  EXPECT_EQ(fds_.count, 0);
}

// The worked example of docs/formats/rank.md.
TEST_F(MessageTest, BytesAreTheDocumentedOnes) {
  Message m;
  m.type = kWantArena;
  m.attempt = 3;
  m.request = 2;
  m.args[0] = 1 << 20;
  m.args[1] = 2;
  m.args[2] = 10;
  ASSERT_EQ(SendMessage(near_, m, nullptr, nullptr, 0), 0);
  unsigned char raw[65];
  ASSERT_EQ(recv(far_, raw, sizeof(raw), 0), 64);
  std::string hex;
  for (int i = 0; i < 64; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += {kDigits[raw[i] >> 4], kDigits[raw[i] & 15]};
  }
  EXPECT_EQ(hex,
            "0100020000000000030000000000000002000000000000000000100000000000"
            "02000000000000000a0000000000000000000000000000000000000000000000");
}

TEST_F(MessageTest, TheLargestPayloadFits) {
  const std::string big(kPayloadBytesMax, 'x');
  Message sent;
  sent.type = kForward;
  sent.payload_bytes = kPayloadBytesMax;
  ASSERT_EQ(SendMessage(near_, sent, big.data(), nullptr, 0), 0);
  ASSERT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), 1);
  EXPECT_EQ(std::string(payload_, sizeof(payload_)), big);
  sent.payload_bytes = kPayloadBytesMax + 1;
  EXPECT_EQ(SendMessage(near_, sent, big.data(), nullptr, 0), -EMSGSIZE);
}

TEST_F(MessageTest, DescriptorsArriveCloseOnExec) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Message sent;
  sent.type = kWelcome;
  ASSERT_EQ(SendMessage(near_, sent, nullptr, ends, 2), 0);
  ASSERT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), 1);
  ASSERT_EQ(fds_.count, 2);
  EXPECT_TRUE(fcntl(fds_.fds[0], F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(fds_.fds[1], F_GETFD) & FD_CLOEXEC);
  ASSERT_EQ(write(fds_.fds[1], "!", 1), 1);
  char c = 0;
  ASSERT_EQ(read(ends[0], &c, 1), 1);
  EXPECT_EQ(c, '!');
  for (int i = 0; i < 2; ++i) {
    close(fds_.fds[i]);
    close(ends[i]);
  }
}

TEST_F(MessageTest, EndOfFileAndEmptySocketAreTold) {
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), -EAGAIN);
  close(near_);
  near_ = -1;
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), 0);
  // And writing to it is an error, not a SIGPIPE.
  EXPECT_EQ(SendMessage(far_, Message(), nullptr, nullptr, 0), -EPIPE);
}

TEST_F(MessageTest, AFullSocketSaysTryAgain) {
  Message message;
  int result = 0;
  for (int i = 0; i < 1'000'000 && result == 0; ++i)
    result = SendMessage(near_, message, nullptr, nullptr, 0);
  EXPECT_EQ(result, -EAGAIN);
}

TEST_F(MessageTest, EveryTruncationIsRefused) {
  Message good;
  good.type = kHello;
  good.payload_bytes = 16;
  const std::string whole = Header(good) + std::string(16, 'p');
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(ReceiveRaw(whole.substr(0, bytes)), -EPROTO) << bytes;
  }
  EXPECT_EQ(ReceiveRaw(whole), 1);
  EXPECT_EQ(ReceiveRaw(whole + "x"), -EPROTO);
}

TEST_F(MessageTest, FlippedLengthOrVersionBitsAreRefused) {
  const std::string good = Header(Message());
  ASSERT_EQ(ReceiveRaw(good), 1);
  for (size_t byte = 0; byte < 8; ++byte) {
    if (byte == 2 || byte == 3) continue;  // the type: any value may arrive, the receiver judges it
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      EXPECT_EQ(ReceiveRaw(bad), -EPROTO) << "byte " << byte << " bit " << bit;
    }
  }
}

TEST_F(MessageTest, PayloadBeyondTheReceiversRoomIsRefused) {
  Message sent;
  sent.payload_bytes = 100;
  ASSERT_EQ(SendMessage(near_, sent, payload_, nullptr, 0), 0);
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, 99, &fds_), -EPROTO);
}

TEST_F(MessageTest, RefusedPacketsLeakNoDescriptor) {
  const size_t before = OpenDescriptors();
  Message nonsense;
  nonsense.version = 99;
  const int some[4] = {near_, near_, near_, near_};
  ASSERT_EQ(SendMessage(near_, nonsense, nullptr, some, 4), 0);
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), -EPROTO);
  ASSERT_EQ(SendMessage(near_, Message(), nullptr, some, 4), 0);
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), nullptr), 1);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(MessageTest, TooManyDescriptorsAreRefusedWithoutALeak) {
  const size_t before = OpenDescriptors();
  std::vector<int> many(20, near_);
  Message header;
  iovec part = {&header, sizeof(header)};
  std::vector<char> control(CMSG_SPACE(many.size() * sizeof(int)));
  msghdr packet = {};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&packet);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(many.size() * sizeof(int));
  memcpy(CMSG_DATA(c), many.data(), many.size() * sizeof(int));
  ASSERT_EQ(sendmsg(near_, &packet, 0), 64);
  EXPECT_EQ(ReceiveMessage(far_, &got_, payload_, sizeof(payload_), &fds_), -EPROTO);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(SendMessage(near_, Message(), nullptr, many.data(), 5), -EINVAL);
}

}  // namespace
}  // namespace holdfast::rank
