// SPDX-License-Identifier: Apache-2.0
// The parsers of /proc on what kernels write and on what none would, and a tree of our own making.
#include "base/inspect/proc_fs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/inspect/sockets.h"
#include "base/inspect/wait.h"
#include "base/testing/temp_dir.h"

namespace holdfast::inspect {
namespace {

using ::testing::ElementsAre;

constexpr char kStat[] =
    "17 (a) b (c) S 3 17 5 0 -1 4194368 199 0 0 0 250 50 9 9 20 0 4 0 1402422 12918784 1640 1 2 3";
constexpr char kIo[] =
    "rchar: 6976\nwchar: 7\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 8192\n"
    "cancelled_write_bytes: 0\n";
constexpr char kSyscall[] =
    "0 0x3 0x7f3ce6111000 0x20000 0x7f3ce61a0b60 0xffffffff 0x0 0x7fff8481c358 0x7f3ce62892ad\n";

std::string StatOf(pid_t pid, pid_t parent, uint64_t start = 100) {
  return absl::StrCat(pid, " (p", pid, ") S ", parent, " 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 ",
                      start, " 0 0\n");
}

class ProcTree {
 public:
  void Write(pid_t pid, const std::string& file, const std::string& text) {
    const std::filesystem::path path = absl::StrCat(Root(), "/", pid, "/", file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  void Link(pid_t pid, const std::string& file, const std::string& target) {
    const std::filesystem::path path = absl::StrCat(Root(), "/", pid, "/", file);
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_symlink(target, path);
  }
  const std::string& Root() const { return directory_.path(); }
  ProcFs Proc() const { return ProcFs(Root()); }

 private:
  holdfast::testing::TempDir directory_;
};

TEST(ParseTest, StatWithANameThatHoldsAnything) {
  const auto stat = ParseStat(kStat);
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->pid, 17);
  EXPECT_EQ(stat->name, "a) b (c");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 3);
  EXPECT_EQ(stat->session, 5);
  EXPECT_EQ(stat->cpu_ticks, 300u);
  EXPECT_EQ(stat->threads, 4);
  EXPECT_EQ(stat->start_ticks, 1402422u);
}

TEST(ParseTest, IoSchedstatSyscall) {
  const auto io = ParseIo(kIo);
  ASSERT_TRUE(io.has_value());
  EXPECT_EQ(io->read, 6976u);
  EXPECT_EQ(io->written, 7u);
  EXPECT_EQ(io->storage_read, 4096u);
  EXPECT_EQ(io->storage_written, 8192u);
  const auto sched = ParseSchedstat("39128 77 3\n");
  ASSERT_TRUE(sched.has_value());
  EXPECT_EQ(sched->queued_ns, 77u);
  EXPECT_EQ(sched->slices, 3u);
  const auto call = ParseSyscall(kSyscall);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->where, SyscallLine::Where::kInside);
  EXPECT_EQ(call->number, 0);
  EXPECT_EQ(call->args[0], 3u);
  EXPECT_EQ(call->args[2], 0x20000u);
  EXPECT_EQ(ParseSyscall("running\n")->where, SyscallLine::Where::kRunning);
  EXPECT_EQ(ParseSyscall("-1 0x7fff 0x7f3c\n")->where, SyscallLine::Where::kOutside);
}

TEST(ParseTest, NonsenseIsRefused) {
  for (const char* text : {"", " ", "17", "17 (a", "17 a) S", "x (a) S 1 1 1", "0 (a) S",
                           "17 (a) SS 3 17 5 0 -1 4 1 0 0 0 2 5 9 9 20 0 4 0 14",
                           "17 (a) S 3 17 5 0 -1 4 1 0 0 0 x 5 9 9 20 0 4 0 14", ")17("})
    EXPECT_FALSE(ParseStat(text).has_value()) << text;
  for (const char* text : {"", "rchar: 1\n", "rchar: x\nwchar: 1\nread_bytes: 1\nwrite_bytes: 1\n",
                           "rchar: -1\nwchar: 1\nread_bytes: 1\nwrite_bytes: 1\n"})
    EXPECT_FALSE(ParseIo(text).has_value()) << text;
  for (const char* text : {"", "1 2", "a b c", "-1 2 3"})
    EXPECT_FALSE(ParseSchedstat(text).has_value()) << text;
  for (const char* text : {"", "run", "0", "0 0x1 0x2", "0 0x1 0x2 0x3 0x4 0x5 zebra"})
    EXPECT_FALSE(ParseSyscall(text).has_value()) << text;
  EXPECT_FALSE(ParseField("Uid:\n", "Uid").has_value());
  EXPECT_FALSE(ParseField("Uidx: 1\n", "Uid").has_value());
  EXPECT_FALSE(ParseField("Uid: 99999999999999999999999\n", "Uid").has_value());
}

// Every prefix of what is right, and random changes to it: none may crash, hang or be read past its
// end (the sanitizer builds see that).
TEST(ParseTest, TruncatedAndDamagedInputIsSurvived) {
  std::mt19937 random(7);
  const std::string table =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n   0: 0100007F:1F90 0200000A:A028 01 00000000:00000000 00:00000000 00000000  1000 0 "
      "4242 1\n";
  for (const std::string& whole :
       {std::string(kStat), std::string(kIo), std::string(kSyscall), table}) {
    for (size_t length = 0; length <= whole.size(); ++length) {
      std::string text = whole.substr(0, length);
      for (int round = 0; round < 8; ++round) {
        ParseStat(text);
        ParseIo(text);
        ParseSchedstat(text);
        ParseSyscall(text);
        FindInetSocket(text, "tcp", 4242);
        FindUnixSocket(text, 4242);
        if (!text.empty()) text[random() % text.size()] = static_cast<char>(random());
      }
    }
  }
}

TEST(SocketTest, AddressesOfBothFamilies) {
  const std::string head = "  sl  local_address rem_address st\n";
  EXPECT_EQ(FindInetSocket(head + "   0: 0100007F:1F90 0200000A:A028 01 0:0 0:0 0 1000 0 42 1\n",
                           "tcp", 42),
            "tcp 127.0.0.1:8080 -> 10.0.0.2:41000 (ESTABLISHED)");
  EXPECT_EQ(FindInetSocket(head + "   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 1000 0 42 1\n",
                           "tcp", 42),
            "tcp 127.0.0.1:8080 (LISTEN)");
  EXPECT_EQ(
      FindInetSocket(head + "   0: 00000000000000000000000001000000:0050 "
                            "00000000000000000000000001000000:0051 08 0:0 0:0 0 1000 0 42 1\n",
                     "tcp6", 42),
      "tcp6 [::1]:80 -> [::1]:81 (CLOSE_WAIT)");
  EXPECT_FALSE(FindInetSocket(head, "tcp", 42).has_value());
  const std::string units =
      "Num RefCount Protocol Flags Type St Inode Path\n"
      "0000: 00000002 00000000 00010000 0001 01   41 /run/a b.sock\n"
      "0000: 00000002 00000000 00000000 0001 03   42\n";
  EXPECT_EQ(FindUnixSocket(units, 41), "unix /run/a b.sock");
  EXPECT_EQ(FindUnixSocket(units, 42), "unix (no name)");
  EXPECT_FALSE(FindUnixSocket(units, 43).has_value());
}

TEST(TreeTest, ReadsAMadeUpTree) {
  ProcTree tree;
  tree.Write(5, "stat", StatOf(5, 1));
  tree.Write(5, "cmdline", std::string("prog\0--x\0", 9));
  tree.Write(5, "environ", std::string("A=1\0RANK=3\0EMPTY=\0", 18));
  tree.Write(5, "status", "Name:\tprog\nUid:\t1000\t1001\t1000\t1000\n");
  tree.Write(7, "stat", "nonsense");
  std::filesystem::create_directories(tree.Root() + "/self");
  const ProcFs proc = tree.Proc();
  EXPECT_THAT(proc.Pids(), ElementsAre(5, 7));
  EXPECT_EQ(proc.AllStats().size(), 1u);
  EXPECT_EQ(proc.Stat(7).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(proc.Stat(8).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(proc.Arguments(5), ElementsAre("prog", "--x"));
  EXPECT_THAT(proc.Arguments(7), ElementsAre());
  EXPECT_EQ(*proc.EnvironValue(5, "RANK"), "3");
  EXPECT_EQ(*proc.EnvironValue(5, "RAN"), "");
  EXPECT_EQ(*proc.Owner(5), 1000u);
}

TEST(TreeTest, AStatOfAnotherPidIsNotTaken) {
  ProcTree tree;
  tree.Write(5, "stat", StatOf(6, 1));
  EXPECT_FALSE(tree.Proc().Stat(5).ok());
}

TEST(TreeTest, BelowGivesEachAfterItsParentAndSurvivesCircles) {
  std::vector<ProcessStat> all;
  for (const auto& [pid, parent] :
       std::vector<std::pair<pid_t, pid_t>>{{2, 1}, {3, 2}, {4, 3}, {5, 2}, {6, 9}, {9, 6}, {7, 1}})
    all.push_back(*ParseStat(StatOf(pid, parent)));
  const auto pids = [&](pid_t pid) {
    std::vector<pid_t> out;
    for (const ProcessStat& stat : Below(all, pid)) out.push_back(stat.pid);
    return out;
  };
  EXPECT_THAT(pids(2), ElementsAre(3, 4, 5));
  EXPECT_THAT(pids(6), ElementsAre(9));
  EXPECT_THAT(pids(42), ElementsAre());
}

TEST(TreeTest, WaitOfASocketWithItsPeer) {
  ProcTree tree;
  tree.Write(5, "syscall", "0 0x3 0x0 0x1 0x0 0x0 0x0 0x7fff 0x7f3c\n");
  tree.Write(5, "wchan", "sk_wait_data");
  tree.Link(5, "fd/3", "socket:[42]");
  tree.Write(5, "net/tcp", "head\n   0: 0100007F:1F90 0200000A:A028 01 0:0 0:0 0 1000 0 42 1\n");
  const auto wait = ReadWait(tree.Proc(), 5);
  ASSERT_TRUE(wait.ok()) << wait.status();
  EXPECT_EQ(WaitText(*wait),
            "read of tcp 127.0.0.1:8080 -> 10.0.0.2:41000 (ESTABLISHED) (descriptor 3)");
  EXPECT_EQ(wait->kernel, "sk_wait_data");
}

TEST(TreeTest, WhatCannotBeResolvedIsLeftOut) {
  ProcTree tree;
  tree.Write(5, "syscall", "0 0x9 0x0 0x1 0x0 0x0 0x0 0x7fff 0x7f3c\n");
  EXPECT_EQ(WaitText(*ReadWait(tree.Proc(), 5)), "read of descriptor 9");
  tree.Write(5, "syscall", "9999 0x9 0x0 0x1 0x0 0x0 0x0 0x7fff 0x7f3c\n");
  EXPECT_EQ(WaitText(*ReadWait(tree.Proc(), 5)), "system call 9999");
  tree.Write(5, "syscall", "garbage\n");
  EXPECT_FALSE(ReadWait(tree.Proc(), 5).ok());
  tree.Write(5, "syscall", "");
  EXPECT_FALSE(ReadWait(tree.Proc(), 5).ok());
}

}  // namespace
}  // namespace holdfast::inspect
