// SPDX-License-Identifier: Apache-2.0
// Rates from two looks, and what is said of them: pure, on made-up processes.
#include "base/inspect/judge.h"

#include <gtest/gtest.h>

#include "base/inspect/sample.h"

namespace holdfast::inspect {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr char kRead[] = "0 0x3 0x0 0x1 0x0 0x0 0x0 0x7fff 0x7f3c\n";

ProcessSample SampleOf(uint64_t cpu_ticks, uint64_t read, uint64_t queued_ns, uint64_t slices) {
  ProcessSample sample;
  sample.stat.pid = 5;
  sample.stat.start_ticks = 100;
  sample.stat.cpu_ticks = cpu_ticks;
  sample.io = IoCounters{read, 2 * read, 0, 0};
  sample.threads[5] = {1000, queued_ns, slices};
  sample.syscall = kRead;
  return sample;
}

TEST(RatesTest, ArePerSecondOfTheTimeThatPassed) {
  const auto rates =
      RatesOf(SampleOf(100, 1000, 0, 1), SampleOf(200, 3000, kSecond, 1), 2 * kSecond, 100);
  ASSERT_TRUE(rates.has_value());
  EXPECT_DOUBLE_EQ(rates->cpus, 0.5);
  EXPECT_DOUBLE_EQ(*rates->read, 1000);
  EXPECT_DOUBLE_EQ(*rates->written, 2000);
  EXPECT_DOUBLE_EQ(rates->queued, 0.5);
}

TEST(RatesTest, NoTimeAndAnotherProcessGiveNone) {
  const ProcessSample before = SampleOf(100, 0, 0, 1);
  ProcessSample after = SampleOf(100, 0, 0, 1);
  EXPECT_FALSE(RatesOf(before, after, 0, 100).has_value());
  EXPECT_FALSE(RatesOf(before, after, -1, 100).has_value());
  EXPECT_FALSE(RatesOf(before, after, kSecond, 0).has_value());
  after.stat.start_ticks = 101;
  EXPECT_FALSE(RatesOf(before, after, kSecond, 100).has_value());
}

TEST(RatesTest, CountersThatShrinkAndWhatIsNotReadable) {
  ProcessSample after = SampleOf(50, 10, 0, 1);
  auto rates = RatesOf(SampleOf(100, 1000, kSecond, 1), after, kSecond, 100);
  EXPECT_EQ(rates->cpus, 0);
  EXPECT_EQ(rates->read, 0);
  EXPECT_EQ(rates->queued, 0);
  after.io.reset();
  rates = RatesOf(SampleOf(100, 1000, 0, 1), after, kSecond, 100);
  EXPECT_FALSE(rates->read.has_value());
  EXPECT_FALSE(Sum({*rates, *rates}).read.has_value());
}

TEST(RatesTest, BlockedMeansTheSameCallAndNoTimeOnACpu) {
  const ProcessSample before = SampleOf(1, 1, 1, 7);
  ProcessSample after = before;
  EXPECT_TRUE(RatesOf(before, after, kSecond, 100)->blocked);
  after.threads[5].slices = 8;
  EXPECT_FALSE(RatesOf(before, after, kSecond, 100)->blocked);
  after = before;
  after.syscall = "0 0x4 0x0 0x1 0x0 0x0 0x0 0x7fff 0x7f3c\n";
  EXPECT_FALSE(RatesOf(before, after, kSecond, 100)->blocked);
  after.syscall = "running\n";
  ProcessSample running = before;
  running.syscall = "running\n";
  EXPECT_FALSE(RatesOf(running, after, kSecond, 100)->blocked);
}

TEST(RatesTest, SumOfAll) {
  Rates a, b;
  a.cpus = 0.5, a.read = 10, a.blocked = true;
  b.cpus = 0.25;
  const Rates sum = Sum({a, b});
  EXPECT_DOUBLE_EQ(sum.cpus, 0.75);
  EXPECT_DOUBLE_EQ(*sum.read, 10);
  EXPECT_FALSE(sum.blocked);
}

Looked ProcessOf(pid_t pid, pid_t parent, char state, WaitKind kind, const std::string& call) {
  Looked looked;
  looked.stat.pid = pid;
  looked.stat.parent = parent;
  looked.stat.name = "python";
  looked.stat.state = state;
  looked.stat.threads = 1;
  looked.rates = Rates{};
  looked.rates->blocked = true;
  looked.wait = Wait{};
  looked.wait->kind = kind;
  looked.wait->call = call;
  return looked;
}

Looked Reader(pid_t pid, pid_t parent, const std::string& target) {
  Looked looked = ProcessOf(pid, parent, 'S', WaitKind::kDescriptor, "read");
  looked.wait->fds = {3};
  looked.wait->targets = {target};
  return looked;
}

TEST(JudgeTest, TheChainOfChildren) {
  LookedAt all;
  all[5] = ProcessOf(5, 1, 'S', WaitKind::kChild, "wait4");
  all[6] = Reader(6, 5, "/mnt/x");
  EXPECT_EQ(Judge(5, all),
            "waits for its child 6 (python), which waits in read of /mnt/x (descriptor 3)");
  all[6].rates->blocked = false;
  EXPECT_EQ(Judge(5, all), "waits for its child 6 (python)");
  all[6].stat.state = 'T';
  EXPECT_EQ(Judge(5, all),
            "waits for its child 6 (python), which is stopped by a signal (kill -CONT 6 lets it go "
            "on)");
  all[7] = Reader(7, 5, "/mnt/y");
  EXPECT_EQ(Judge(5, all), "waits for any of its 2 children");
  all[5].wait->child = 7;
  EXPECT_EQ(Judge(5, all),
            "waits for its child 7 (python), which waits in read of /mnt/y (descriptor 3)");
  all[5].wait->child = 8;  // not among them
  EXPECT_EQ(Judge(5, all), "");
}

TEST(JudgeTest, NothingIsSaidWithoutBeingCertain) {
  LookedAt all;
  EXPECT_EQ(Judge(5, all), "");
  all[5] = Reader(5, 1, "/mnt/x");
  all[5].rates->blocked = false;
  EXPECT_EQ(Judge(5, all), "");
  all[5].rates.reset();
  EXPECT_EQ(Judge(5, all), "");
  all[5] = Reader(5, 1, "/mnt/x");
  all[5].wait.reset();
  EXPECT_EQ(Judge(5, all), "");
}

TEST(JudgeTest, StatesOfTheKernel) {
  LookedAt all;
  all[5] = Reader(5, 1, "/mnt/x");
  all[5].stat.state = 'D';
  all[5].stat.threads = 3;
  all[5].wait->kernel = "nfs_wait_bit_killable";
  EXPECT_EQ(Judge(5, all),
            "waits, in its main thread, in read of /mnt/x (descriptor 3), uninterruptible, in the "
            "kernel's nfs_wait_bit_killable");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kStorage);
  all[5].stat.state = 't';
  all[5].tracer = 99;
  EXPECT_EQ(Judge(5, all), "is held by a debugger, process 99");
  all[5].stat.state = 'Z';
  EXPECT_EQ(Judge(5, all), "has ended, and nobody has taken its exit yet");
}

TEST(JudgeTest, WhoCanWriteIntoThePipe) {
  LookedAt all;
  all[5] = Reader(5, 1, "pipe:[9]");
  all[6] = Reader(6, 5, "/mnt/x");
  all[5].writers = {6};
  EXPECT_EQ(Judge(5, all),
            "waits in read of pipe:[9] (descriptor 3), open for writing in 6 (python), which waits "
            "in read of /mnt/x (descriptor 3)");
  all[5].writers = {6, 7};
  EXPECT_EQ(Judge(5, all), "waits in read of pipe:[9] (descriptor 3), open for writing in 6, 7");
}

TEST(JudgeTest, TheEndOfAChainIsThatOfItsLastProcess) {
  LookedAt all;
  all[5] = ProcessOf(5, 1, 'S', WaitKind::kChild, "wait4");
  all[6] = Reader(6, 5, "/mnt/x");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kData);
  EXPECT_EQ(JudgeChain(5, all).pid, 6);
  all[6] = Reader(6, 5, "tcp 127.0.0.1:1 -> 127.0.0.1:2");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kPeer);
  all[6].rates->blocked = false;  // it works
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown);
  EXPECT_FALSE(JudgeChain(5, all).text.empty());
  all[6].stat.state = 'T';
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kStopped);
}

TEST(JudgeTest, AnyOfSeveralChildrenIsCertainOnlyWhenAllAre) {
  LookedAt all;
  all[5] = ProcessOf(5, 1, 'S', WaitKind::kChild, "wait4");
  all[6] = Reader(6, 5, "/mnt/x");
  all[7] = Reader(7, 5, "/mnt/y");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kData);
  EXPECT_EQ(JudgeChain(5, all).pid, 6);
  all[7] = Reader(7, 5, "tcp 127.0.0.1:1 -> 127.0.0.1:2");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown);
  all[7] = Reader(7, 5, "/mnt/y");
  all[7].rates->blocked = false;
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown);
}

// A loader's main process waits for its two workers; one of these hangs, the other waits for work.
TEST(JudgeTest, WhoWaitsForTheWaitingOneIsNotTheCause) {
  LookedAt all;
  all[5] = Reader(5, 1, "pipe:[9]");
  all[5].writers = {6, 7};
  all[6] = Reader(6, 5, "pipe:[10]");
  all[6].writers = {5, 7};
  all[7] = Reader(7, 5, "/mnt/shard");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kData);
  EXPECT_EQ(JudgeChain(5, all).pid, 7);
  EXPECT_EQ(Judge(5, all),
            "waits in read of pipe:[9] (descriptor 3), open for writing in 6, 7, of which 7 "
            "(python) waits in read of /mnt/shard (descriptor 3)");
  all[7] = Reader(7, 5, "pipe:[11]");
  all[7].writers = {5};
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown) << "all wait for each other";
}

TEST(JudgeTest, APipeWithoutAKnownWriterAndOneOfSeveralAreUnknown) {
  LookedAt all;
  all[5] = Reader(5, 1, "pipe:[9]");
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown);
  all[5].wait->kind = WaitKind::kPoll;
  all[5].wait->fds = {3, 4};
  all[5].wait->targets = {"/mnt/x", "/mnt/y"};
  EXPECT_EQ(JudgeChain(5, all).end, WaitsFor::kUnknown);
}

// Numbers that change while they are read can make a circle of children.
TEST(JudgeTest, AChainHasAnEnd) {
  LookedAt all;
  all[5] = ProcessOf(5, 6, 'S', WaitKind::kChild, "wait4");
  all[6] = ProcessOf(6, 5, 'S', WaitKind::kChild, "wait4");
  EXPECT_LT(Judge(5, all).size(), 1000u);
}

}  // namespace
}  // namespace holdfast::inspect
