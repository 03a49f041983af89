// SPDX-License-Identifier: Apache-2.0
// Status, ids, clocks, mutex, kill points and systemd's notification protocol.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/sd_notify.h"
#include "base/status.h"
#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"

namespace holdfast {
namespace {

TEST(StatusTest, MapsErrnoAndNamesWhatFailed) {
  const absl::Status status = ErrnoStatus(ENOENT, "open /x/y");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "open /x/y: No such file or directory (errno 2)");
  EXPECT_TRUE(absl::IsResourceExhausted(ErrnoStatus(ENOSPC, "w")));
  EXPECT_TRUE(absl::IsPermissionDenied(ErrnoStatus(EROFS, "w")));
  EXPECT_TRUE(absl::IsAlreadyExists(ErrnoStatus(EEXIST, "w")));
  EXPECT_TRUE(absl::IsInternal(ErrnoStatus(EIO, "w")));
}

TEST(StatusTest, AnnotateKeepsTheCodeAndLeavesOkAlone) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "ctx").ok());
  const absl::Status status = Annotate(absl::DataLossError("bad byte"), "file");
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(status.message(), "file: bad byte");
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  HF_ASSIGN_OR_RETURN(const int half, Half(value));
  HF_RETURN_IF_ERROR(Half(half).status());
  return Half(half);
}

TEST(StatusTest, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_FALSE(Quarter(6).ok());
  EXPECT_FALSE(Quarter(7).ok());
}

TEST(IdsTest, JobIdsRoundTrip) {
  EXPECT_EQ(ToString(JobId{42}), "j-42");
  EXPECT_EQ(ParseJobId("j-42")->value, 42u);
  EXPECT_EQ(ParseJobId("j-18446744073709551615")->value, ~0ull);
}

TEST(IdsTest, RefusesWhatIsNotExactlyAJobId) {
  for (const char* text : {"", "j-", "j-0", "j-01", "42", "J-42", "j-42 ", " j-42", "j--1", "j-+1",
                           "j-18446744073709551616", "j-4x"}) {
    EXPECT_FALSE(ParseJobId(text).ok()) << text;
  }
}

TEST(IdsTest, NamesBecomePathComponents) {
  EXPECT_TRUE(IsValidName("llama-7B_v1.2"));
  EXPECT_TRUE(IsValidName(std::string(63, 'a')));
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("a b"),
        std::string(64, 'a'), std::string("a\0b", 3), std::string("\xc3\xa4"), std::string("-rf"),
        std::string("--"), std::string(".hidden"), std::string("_x")}) {
    EXPECT_FALSE(IsValidName(name)) << name;
  }
}

TEST(IdsTest, CheckpointIdsPrintAndOrderByJobFirst) {
  EXPECT_EQ(ToString(CheckpointId{JobId{42}, 3, 100}), "j-42@100.3");
  EXPECT_LT((CheckpointId{JobId{1}, 9, 9}), (CheckpointId{JobId{2}, 1, 1}));
}

TEST(ClockTest, SystemClockIsMonotonicAndFakeClockMovesOnlyWhenTold) {
  SystemClock system;
  const int64_t first = system.MonoNs();
  EXPECT_LE(first, system.MonoNs());
  EXPECT_GT(system.WallNs(), 1'600'000'000 * kNsPerSec);
  FakeClock fake;
  const int64_t mono = fake.MonoNs(), wall = fake.WallNs();
  EXPECT_EQ(fake.MonoNs(), mono);
  fake.AdvanceNs(5);
  fake.StepWallNs(-100);
  EXPECT_EQ(fake.MonoNs(), mono + 5);
  EXPECT_EQ(fake.WallNs(), wall + 5 - 100);
}

TEST(MutexTest, WaitEndsByNotificationOrByTime) {
  Mutex mutex;
  CondVar cv;
  bool ready = false;
  std::thread other([&] {
    MutexLock lock(mutex);
    ready = true;
    cv.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!ready) cv.Wait(mutex);
  }
  other.join();
  MutexLock lock(mutex);
  const int64_t before = SystemClock().MonoNs();
  while (cv.WaitForNs(mutex, 20 * kNsPerMs)) {  // a spurious wake-up is allowed
  }
  EXPECT_GE(SystemClock().MonoNs() - before, 10 * kNsPerMs);
}

// A test binary starts threads elsewhere, so the process that dies is started afresh.
TEST(KillPointDeathTest, DiesTheThirdTimeTheNamedPointIsReached) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("HOLDFAST_KILL_POINT", "test.point:before#3", 1);
        HF_KILL_POINT("test.other:before");
        HF_KILL_POINT("test.point:before");
        HF_KILL_POINT("test.point:before");
        std::fprintf(stderr, "two passed\n");
        HF_KILL_POINT("test.point:before");
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGKILL), "two passed");
}

TEST(KillPointDeathTest, IsOffWithoutTheVariable) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::unsetenv("HOLDFAST_KILL_POINT");
        HF_KILL_POINT("test.point:before");
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(SdNotifyTest, SendsOneDatagramToTheSocket) {
  testing::TempDir dir;
  ASSERT_FALSE(dir.path().empty());
  const std::string path = dir.Sub("n");
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  EXPECT_TRUE(SdNotify("READY=1\nSTATUS=serving"));
  char buffer[64];
  const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  EXPECT_EQ(std::string(buffer, got > 0 ? static_cast<size_t>(got) : 0), "READY=1\nSTATUS=serving");
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(SdNotify("READY=1"));
}

TEST(SdNotifyTest, WatchdogIntervalIsHalfOfWhatSystemdAsksFor) {
  ::setenv("WATCHDOG_USEC", "3000000", 1);
  EXPECT_EQ(WatchdogIntervalMs(), 1500);
  ::unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(WatchdogIntervalMs(), 0);
}

}  // namespace
}  // namespace holdfast
