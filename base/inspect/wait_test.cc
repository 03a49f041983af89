// SPDX-License-Identifier: Apache-2.0
// Real children, blocked in one thing each, seen from outside.
#include "base/inspect/wait.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/inspect/judge.h"
#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"

namespace holdfast::inspect {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDeadlineNs = 20 * kNsPerSec;

// Runs `body` in a child of its own and kills it at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

bool Eventually(const std::function<bool()>& holds) {
  const SystemClock clock;
  for (const int64_t end = clock.MonoNs() + kDeadlineNs; clock.MonoNs() < end;) {
    if (holds()) return true;
    ::poll(nullptr, 0, 5);
  }
  return holds();
}

// Its wait, once it is in one of `kind`.
Wait WaitIn(pid_t pid, WaitKind kind) {
  const ProcFs proc;
  Wait wait;
  EXPECT_TRUE(Eventually([&] {
    const auto now = ReadWait(proc, pid);
    if (now.ok()) wait = *now;
    return wait.kind == kind;
  })) << "it is in "
      << WaitText(wait);
  return wait;
}

// Both looks, `ms` apart.
LookedAt LookTwice(const std::vector<pid_t>& pids, int ms) {
  const ProcFs proc;
  const SystemClock clock;
  const int64_t begin = clock.MonoNs();
  const Sample before = TakeSample(proc, pids);
  ::poll(nullptr, 0, ms);
  const int64_t elapsed = clock.MonoNs() - begin;
  const Sample after = TakeSample(proc, pids);
  LookedAt all;
  for (const auto& [pid, sample] : after) {
    Looked& looked = all[pid];
    looked.stat = sample.stat;
    if (before.count(pid) == 1)
      looked.rates = RatesOf(before.at(pid), sample, elapsed, ::sysconf(_SC_CLK_TCK));
    if (const auto line = ParseSyscall(sample.syscall)) looked.wait = ExplainWait(proc, pid, *line);
  }
  return all;
}

void ReadForever(int fd) {
  char byte;
  while (::read(fd, &byte, 1) >= 0) {
  }
}

class WaitTest : public ::testing::Test {
 protected:
  // Kernels can be built without /proc/PID/syscall.
  void SetUp() override {
    if (!ProcFs().Read(::getpid(), "syscall").ok()) GTEST_SKIP() << "no /proc/PID/syscall here";
  }
  holdfast::testing::TempDir directory_;
};

TEST_F(WaitTest, ReadOfAFifoNamesItsPath) {
  const std::string path = directory_.Sub("data");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd keep_open(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const Child child([&] { ReadForever(::open(path.c_str(), O_RDONLY)); });
  const Wait wait = WaitIn(child.pid(), WaitKind::kDescriptor);
  EXPECT_EQ(wait.call, "read");
  EXPECT_EQ(wait.targets[0], path);
  EXPECT_THAT(Judge(child.pid(), LookTwice({child.pid()}, 50)),
              HasSubstr(absl::StrCat("waits in read of ", path)));
}

TEST_F(WaitTest, OpenOfAFifoNamesItsPathAlsoARelativeOne) {
  const std::string path = directory_.Sub("data");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Child absolute([&] { ::open(path.c_str(), O_RDONLY); });
  EXPECT_EQ(WaitText(WaitIn(absolute.pid(), WaitKind::kPath)), absl::StrCat("open of ", path));
  const Child relative([&] {
    if (::chdir(directory_.path().c_str()) == 0) ::open("data", O_RDONLY);
  });
  EXPECT_EQ(WaitText(WaitIn(relative.pid(), WaitKind::kPath)), absl::StrCat("open of ", path));
}

TEST_F(WaitTest, RecvOfASocketNamesThePeer) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const Child child([&] {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) ::recv(fd, &byte, 1, 0);
  });
  const Wait wait = WaitIn(child.pid(), WaitKind::kDescriptor);
  EXPECT_EQ(wait.call, "recv");
  EXPECT_THAT(wait.targets[0],
              HasSubstr(absl::StrCat("-> 127.0.0.1:", ntohs(address.sin_port), " (ESTABLISHED)")));
}

TEST_F(WaitTest, PollNamesItsPipeAndWhoCanWriteIt) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd reader(fds[0]), writer(fds[1]);
  const Child child([&] {
    ::close(fds[1]);
    pollfd p{fds[0], POLLIN, 0};
    ::poll(&p, 1, -1);
  });
  const Wait wait = WaitIn(child.pid(), WaitKind::kPoll);
  ASSERT_EQ(wait.fds, std::vector<int>({fds[0]}));
  EXPECT_THAT(wait.targets[0], HasSubstr("pipe:["));
  EXPECT_EQ(PipeWriters(ProcFs(), {child.pid(), ::getpid()}).Of(wait.targets[0]),
            std::vector<pid_t>({::getpid()}));
}

TEST_F(WaitTest, Futex) {
  const Child child([] {
    int word = 0;
    ::syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  });
  EXPECT_EQ(WaitText(WaitIn(child.pid(), WaitKind::kFutex)), "futex");
  EXPECT_EQ(Judge(child.pid(), LookTwice({child.pid()}, 50)), "waits in futex");
}

TEST_F(WaitTest, AParentThatWaitsForABlockedChild) {
  const std::string path = directory_.Sub("data");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd keep_open(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  for (const bool by_number : {false, true}) {
    const Child parent([&] {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ReadForever(::open(path.c_str(), O_RDONLY));
      }
      ::waitpid(by_number ? child : -1, nullptr, 0);
    });
    const Wait wait = WaitIn(parent.pid(), WaitKind::kChild);
    const std::vector<ProcessStat> below = Below(ProcFs().AllStats(), parent.pid());
    ASSERT_EQ(below.size(), 1u);
    EXPECT_EQ(wait.child, by_number ? below[0].pid : 0);
    WaitIn(below[0].pid, WaitKind::kDescriptor);
    EXPECT_EQ(Judge(parent.pid(), LookTwice({parent.pid(), below[0].pid}, 50)),
              absl::StrCat("waits for its child ", below[0].pid, " (", below[0].name,
                           "), which waits in read of ", path, " (descriptor ",
                           WaitIn(below[0].pid, WaitKind::kDescriptor).fds[0], ")"));
  }
}

TEST_F(WaitTest, ASpinningProcessUsesACpuAndIsNotJudged) {
  const Child child([] {
    while (::getppid() != 0) {
    }
  });
  // A busy machine may give it little: it is on a CPU sooner or later.
  EXPECT_TRUE(Eventually([&] {
    const LookedAt all = LookTwice({child.pid()}, 200);
    EXPECT_EQ(Judge(child.pid(), all), "");
    const auto& looked = all.at(child.pid());
    return looked.rates->cpus + looked.rates->queued > 0.5 && looked.rates->cpus > 0;
  }));
}

TEST_F(WaitTest, AStoppedProcess) {
  const Child child([] { ::pause(); });
  WaitIn(child.pid(), WaitKind::kTime);
  ::kill(child.pid(), SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return ProcFs().Stat(child.pid())->state == 'T'; }));
  EXPECT_THAT(Judge(child.pid(), LookTwice({child.pid()}, 20)), HasSubstr("stopped by a signal"));
  ::kill(child.pid(), SIGCONT);
}

TEST_F(WaitTest, AProcessThatIsGone) {
  pid_t pid = 0;
  {
    const Child child([] { ::pause(); });
    pid = child.pid();
  }
  EXPECT_EQ(ReadWait(ProcFs(), pid).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(TakeSample(ProcFs(), {pid}).empty());
}

}  // namespace
}  // namespace holdfast::inspect
