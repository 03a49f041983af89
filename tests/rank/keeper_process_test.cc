// SPDX-License-Identifier: Apache-2.0
// The real keeper with shell scripts for ranks: starts, ends, signals, descendants, output, the
// fence.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/rank/recorder.h"
#include "tests/rank/keeper_harness.h"

namespace holdfast::test_rank {
namespace {

using rank::Message;

TEST_F(KeeperTest, ExitCodesAndSignalsAreReportedAndKept) {
  auto agent = Attach();
  rank::StartSpec spec = Spec(
      1, 3, {"/bin/sh", "-c", "case $RANK in 0) exit 0;; 1) exit 7;; 2) kill -SEGV $$;; esac"});
  const std::vector<pid_t> pids = StartRanks(agent.get(), spec);
  const uint64_t expected[] = {Status(CLD_EXITED, 0), Status(CLD_EXITED, 7),
                               Status(CLD_KILLED, SIGSEGV)};
  for (uint64_t r = 0; r < 3; ++r) {
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    const bool dumped = exited->message.args[2] == Status(CLD_DUMPED, SIGSEGV) && r == 2;
    EXPECT_TRUE(exited->message.args[2] == expected[r] || dumped)
        << r << ": " << exited->message.args[2];
    EXPECT_EQ(static_cast<pid_t>(exited->message.args[1]), pids[r]);
    EXPECT_GT(exited->message.args[3], 0u);
    EXPECT_EQ(exited->message.args[4], 1u);
  }
  std::istringstream lines(ReadFile(keeper_dir_ + "/exits"));
  int count = 0;
  for (uint64_t attempt, r, pid, status, ns; lines >> attempt >> r >> pid >> status >> ns;
       ++count) {
    EXPECT_EQ(attempt, 1u);
    EXPECT_EQ(static_cast<pid_t>(pid), pids[r]);
    if (r < 2) {
      EXPECT_EQ(status, expected[r]);
    }
  }
  EXPECT_EQ(count, 3);
}

TEST_F(KeeperTest, ARankIsALeaderWithItsOwnEnvironmentAndDirectory) {
  auto agent = Attach();
  rank::StartSpec spec = Shell(1,
                               "echo $A-$B-$RANK; pwd; echo $HOLDFAST_SOCKET; echo to stderr >&2; "
                               "ps -o sid= -p $$; echo $$; cat");
  spec.env.push_back("A=common");
  spec.env.push_back("B=common");
  spec.ranks[0].env.push_back("B=own");
  const pid_t pid = StartRanks(agent.get(), spec)[0];
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);  // cat ends: its input is /dev/null
  std::istringstream out(Log(0, 1));
  std::string mix, cwd, socket, error, session, self;
  std::getline(out, mix);
  std::getline(out, cwd);
  std::getline(out, socket);
  std::getline(out, error);
  std::getline(out, session);
  std::getline(out, self);
  EXPECT_EQ(mix, "common-own-0");
  EXPECT_EQ(cwd, std::filesystem::canonical(dir_.path()).string());
  EXPECT_EQ(socket, socket_);
  EXPECT_EQ(error, "to stderr");
  EXPECT_EQ(atoi(session.c_str()), pid);
  EXPECT_EQ(atoi(self.c_str()), pid);
}

TEST_F(KeeperTest, ARankInheritsNoDescriptorMaskOrIgnoredSignal) {
  auto agent = Attach();
  rank::StartSpec spec =
      Spec(1, 2, {Binary("holdfast-test-rank"), "--steps", "0", "--descriptors", dir_.Sub("fds")});
  // grep itself, since a shell blocks signals now and then.
  spec.ranks[1].args = {
      "grep", "-h", "-E", "^Sig(Blk|Ign)|open files", "/proc/self/status", "/proc/self/limits"};
  StartRanks(agent.get(), spec);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 1), nullptr);
  std::istringstream fds(ReadFile(dir_.Sub("fds")));
  std::vector<int> open;
  for (int fd; fds >> fd;) open.push_back(fd);
  std::sort(open.begin(), open.end());
  EXPECT_EQ(open, (std::vector<int>{0, 1, 2}));
  const std::string status = Log(1, 1);
  EXPECT_NE(status.find("SigBlk:\t0000000000000000"), std::string::npos) << status;
  EXPECT_NE(status.find("SigIgn:\t0000000000000000"), std::string::npos) << status;
  rlimit own;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  EXPECT_NE(status.find(std::to_string(own.rlim_cur)), std::string::npos) << status;
}

TEST_F(KeeperTest, StopAndContinueAreSeen) {
  auto agent = Attach();
  const pid_t pid = StartRanks(agent.get(), Shell(1, "sleep 1000; sleep 1000"))[0];
  kill(pid, SIGSTOP);
  const auto stopped = agent->ExpectOfRank(rank::kStopped, 0);
  ASSERT_NE(stopped, nullptr);
  EXPECT_EQ(static_cast<pid_t>(stopped->message.args[1]), pid);
  EXPECT_EQ(stopped->message.args[2], static_cast<uint64_t>(SIGSTOP));
  std::vector<std::unique_ptr<Packet>> states;
  auto second = Attach(&states);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0]->message.args[2], static_cast<uint64_t>(rank::kRankStopped));
  kill(pid, SIGCONT);
  const auto continued = second->ExpectOfRank(rank::kContinued, 0);
  ASSERT_NE(continued, nullptr);
  EXPECT_GE(continued->message.args[3], stopped->message.args[3]);
  // A stopped rank dies of SIGKILL all the same.
  kill(pid, SIGSTOP);
  ASSERT_NE(second->ExpectOfRank(rank::kStopped, 0), nullptr);
  Signal(second.get(), SIGKILL, 0, 1);
  const auto exited = second->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_KILLED, SIGKILL));
}

TEST_F(KeeperTest, SignalsReachWholeGroupsOfOneRankOrAll) {
  auto agent = Attach();
  const std::string script =
      "trap 'echo got; exit 5' TERM; sleep 1000 & echo $! > $DIR/child.$RANK; wait; exit 9";
  StartRanks(agent.get(), Spec(1, 2, {"/bin/sh", "-c", script}));
  const pid_t child0 = PidFrom("child.0"), child1 = PidFrom("child.1");
  Signal(agent.get(), SIGTERM, 1, 1);
  auto exited = agent->Expect(rank::kExited);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[0], 1u);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 5));
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(child1); }));
  EXPECT_TRUE(ProcessLives(child0));
  Signal(agent.get(), SIGTERM, rank::kAllRanks, 1);
  exited = agent->Expect(rank::kExited);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[0], 0u);
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(child0); }));
}

TEST_F(KeeperTest, WrongSignalsAreRefused) {
  auto agent = Attach();
  const pid_t pid = StartRanks(agent.get(), Shell(1, "sleep 1000"))[0];
  Signal(agent.get(), SIGKILL, rank::kAllRanks, 2);
  auto refused = agent->Expect(rank::kError);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->message.args[0], static_cast<uint64_t>(ESTALE));
  Signal(agent.get(), 4711, rank::kAllRanks, 1);
  refused = agent->Expect(rank::kError);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->message.args[0], static_cast<uint64_t>(EINVAL));
  EXPECT_TRUE(ProcessLives(pid));
}

TEST_F(KeeperTest, RanksDieWithTheKeeper) {
  auto agent = Attach();
  const std::vector<pid_t> pids =
      StartRanks(agent.get(), Spec(1, 2, {"/bin/sh", "-c", "trap '' TERM HUP; exec sleep 1000"}));
  KillKeeper();
  for (pid_t pid : pids) {
    EXPECT_TRUE(Eventually([&] { return !ProcessLives(pid); })) << pid;
  }
  EXPECT_TRUE(agent->WaitForEnd());
  // A new keeper serves the same directory.
  StartKeeper();
  auto again = AgentSide(socket_);
}

TEST_F(KeeperTest, DescendantsDoNotOutliveTheirRank) {
  auto agent = Attach();
  // A child in its own session; one that was orphaned by a double fork; one that is orphaned, in
  // its own session, ignores TERM and hides its environment.
  const std::string script =
      "deaf='trap \"\" TERM HUP INT; echo $$ > $0; sleep 1000; sleep 1000'\n"
      "setsid sh -c \"$deaf\" $DIR/session &\n"
      "(sh -c \"$deaf\" $DIR/orphan & )\n"
      "(setsid env -i sh -c \"$deaf\" $DIR/hidden & )\n"
      "(setsid sh -c \"$deaf\" $DIR/daemon & )\n"
      "sleep 1000; sleep 1000";
  rank::StartSpec spec = Spec(1, 2, {"/bin/sh", "-c", script});
  spec.ranks[1].args = {"/bin/sh", "-c",
                        "(setsid sh -c 'echo $$ > $DIR/other; sleep 1000' & ); sleep 1000"};
  StartRanks(agent.get(), spec);
  const pid_t session = PidFrom("session"), orphan = PidFrom("orphan"), hidden = PidFrom("hidden"),
              daemon = PidFrom("daemon"), other = PidFrom("other");
  Signal(agent.get(), SIGKILL, 0, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  for (pid_t pid : {session, orphan, daemon}) {
    EXPECT_TRUE(Eventually([&] { return !ProcessLives(pid); })) << pid;
  }
  EXPECT_TRUE(ProcessLives(other)) << "a descendant of a rank that lives was killed";
  // What hides whose it is goes with the last rank.
  Signal(agent.get(), SIGKILL, 1, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 1), nullptr);
  for (pid_t pid : {other, hidden}) {
    EXPECT_TRUE(Eventually([&] { return !ProcessLives(pid); })) << pid;
  }
}

TEST_F(KeeperTest, DescendantsEndWithARankThatExitsByItself) {
  auto agent = Attach();
  StartRanks(agent.get(), Shell(1,
                                "(setsid sh -c 'echo $$ > $DIR/left; sleep 1000' & ); while [ ! -s "
                                "$DIR/left ]; do :; done; exit 0"));
  const auto exited = agent->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0));
  const pid_t left = PidFrom("left");
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(left); }));
}

TEST_F(KeeperTest, WhatCannotStartIsReportedByStage) {
  auto agent = Attach();
  rank::StartSpec spec = Spec(1, 4, {"/bin/true"});
  spec.ranks[0].args = {"/no/such/program"};
  spec.ranks[1].args = {dir_.path()};  // a directory: EACCES
  spec.ranks[2].args = {"no-such-program-in-path"};
  spec.ranks[3].args = {"true"};  // found in PATH
  SendStart(agent.get(), spec);
  const int errors[] = {ENOENT, EACCES, ENOENT};
  for (uint64_t r = 0; r < 3; ++r) {
    const auto failed = agent->ExpectOfRank(rank::kStartFailed, r);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->message.args[1], static_cast<uint64_t>(errors[r])) << r;
    EXPECT_EQ(failed->message.args[2], static_cast<uint64_t>(rank::kStageExec)) << r;
    EXPECT_EQ(failed->payload, spec.ranks[r].args[0]);
    EXPECT_EQ(failed->message.attempt, 1u);
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 127));
  }
  ASSERT_NE(agent->Expect(rank::kStarted, [](const Packet& p) { return p.message.args[1] == 3; }),
            nullptr);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 3), nullptr);

  spec = Shell(2, "exit 0");
  spec.cwd = "/no/such/directory";
  SendStart(agent.get(), spec);
  auto failed = agent->ExpectOfRank(rank::kStartFailed, 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->message.args[2], static_cast<uint64_t>(rank::kStageCwd));
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);

  spec = Shell(3, "exit 0");
  spec.log_dir = "/no/such/directory";
  SendStart(agent.get(), spec);
  failed = agent->ExpectOfRank(rank::kStartFailed, 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->message.args[2], static_cast<uint64_t>(rank::kStageLog));
}

TEST_F(KeeperTest, StartsAreRefusedWhenOldDoubledOrMalformed) {
  auto agent = Attach();
  const auto refused = [&](const rank::StartSpec& spec, int error) {
    SendStart(agent.get(), spec);
    const auto answer = agent->Expect(rank::kError);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->message.args[0], static_cast<uint64_t>(error)) << answer->payload;
    EXPECT_FALSE(answer->payload.empty());
  };
  StartRanks(agent.get(), Shell(5, "sleep 1000"));
  refused(Shell(6, "exit 0"), EBUSY);
  refused(Shell(5, "exit 0"), ESTALE);
  refused(Shell(4, "exit 0"), ESTALE);
  Signal(agent.get(), SIGKILL, 0, 5);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  refused(Shell(5, "exit 0"), ESTALE);
  rank::StartSpec foreign = Shell(6, "exit 0");
  foreign.job = 43;
  refused(foreign, EINVAL);
  rank::StartSpec empty = Shell(6, "exit 0");
  empty.ranks.clear();
  refused(empty, EINVAL);
  Message bare;
  bare.type = rank::kStart;
  bare.args[0] = 6;
  agent->Send(bare);
  const auto answer = agent->Expect(rank::kError);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->message.args[0], static_cast<uint64_t>(EINVAL));
  EXPECT_EQ(StartRanks(agent.get(), Shell(6, "exit 0")).size(), 1u);
}

// What a service wrote to the socket it was given, up to the end of a line.
std::string ReadLine(int fd) {
  std::string line;
  char c = 0;
  pollfd ready = {fd, POLLIN, 0};
  while (poll(&ready, 1, kDeadlineMs) == 1 && read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

class ServiceTest : public KeeperTest {
 protected:
  // Starts `ranks` beside a service that tells its pid through its socket.
  pid_t StartWithService(AgentSide* agent, rank::StartSpec ranks) {
    ranks.service = {"/bin/sh", "-c", "echo $$ $RANK$HOLDFAST_SOCKET >&3; exec sleep 1000"};
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd ours(ends[0]), theirs(ends[1]);
    SendStart(agent, ranks, theirs.get());
    EXPECT_NE(agent->ExpectOfStart(ranks.attempt), nullptr);
    const std::string line = ReadLine(ours.get());
    EXPECT_EQ(line.find_first_not_of("0123456789"), std::string::npos)
        << "a service is no rank: " << line;
    return static_cast<pid_t>(std::atoi(line.c_str()));
  }
  std::string KeeperLog() const { return ReadFile(keeper_dir_ + "/keeper.log"); }
  bool Logged(const std::string& text) const {
    return Eventually([&] { return KeeperLog().find(text) != std::string::npos; });
  }
};

TEST_F(ServiceTest, ItLivesAsLongAsARankDoes) {
  auto agent = Attach();
  const pid_t service = StartWithService(agent.get(), Spec(1, 2, {"/bin/sleep", "1000"}));
  ASSERT_GT(service, 1);
  EXPECT_TRUE(ProcessLives(service));
  Signal(agent.get(), SIGKILL, 0, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  EXPECT_TRUE(ProcessLives(service)) << "rank 1 still needs it";
  Signal(agent.get(), SIGKILL, 1, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 1), nullptr);
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(service); }));
}

TEST_F(ServiceTest, ItStaysWhenTheAgentGoesAndDiesWithTheKeeper) {
  auto agent = Attach();
  const pid_t service = StartWithService(agent.get(), Spec(1, 1, {"/bin/sleep", "1000"}));
  agent->Close();
  agent = Attach();
  EXPECT_TRUE(ProcessLives(service));
  KillKeeper();
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(service); }));
}

TEST_F(ServiceTest, OneThatEndsIsToldAndLeavesTheRanksAlone) {
  auto agent = Attach();
  const pid_t service = StartWithService(agent.get(), Shell(1, "sleep 1000"));
  ASSERT_EQ(kill(service, SIGKILL), 0);
  const auto ended = agent->Expect(rank::kServiceEnded);
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->message.attempt, 1u);
  EXPECT_EQ(ended->message.args[0], Status(CLD_KILLED, SIGKILL));
  EXPECT_FALSE(agent->HasSeen(rank::kExited));
}

TEST_F(ServiceTest, OneThatIsStoppedIsContinued) {
  auto agent = Attach();
  const pid_t service = StartWithService(agent.get(), Shell(1, "sleep 1000"));
  ASSERT_EQ(kill(service, SIGSTOP), 0);
  EXPECT_TRUE(Logged("the service was stopped by signal 19: continued"));
  EXPECT_TRUE(Eventually([&] {
    const std::string stat = ReadFile("/proc/" + std::to_string(service) + "/stat");
    return stat.find(") T ") == std::string::npos;
  }));
}

TEST_F(ServiceTest, WithoutItNoRankIsStarted) {
  auto agent = Attach();
  rank::StartSpec missing = Spec(1, 2, {"/bin/sleep", "1000"});
  missing.service = {"/no/such/service"};
  const UniqueFd socket(open("/dev/null", O_RDONLY | O_CLOEXEC));
  SendStart(agent.get(), missing, socket.get());
  for (const uint64_t number : {0, 1}) {
    const auto failed = agent->ExpectOfRank(rank::kStartFailed, number);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->message.args[1], static_cast<uint64_t>(ENOENT));
    EXPECT_EQ(failed->message.args[2], static_cast<uint64_t>(rank::kStageService));
    EXPECT_EQ(failed->payload, "/no/such/service");
  }
  EXPECT_FALSE(agent->HasSeen(rank::kStarted));
  EXPECT_EQ(StartRanks(agent.get(), Shell(2, "exit 0")).size(), 1u);
}

TEST_F(ServiceTest, ItEndsWhenNoRankCouldBeStarted) {
  auto agent = Attach();
  rank::StartSpec spec = Shell(1, "sleep 1000");
  spec.log_dir = "/no/such/directory";
  spec.service = {"/bin/sh", "-c", "echo $$ >&3; exec sleep 1000"};
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  SendStart(agent.get(), spec, theirs.get());
  ASSERT_NE(agent->ExpectOfRank(rank::kStartFailed, 0), nullptr);
  EXPECT_TRUE(Eventually([&] {
    const std::string children = ReadFile("/proc/" + std::to_string(keeper_) + "/task/" +
                                          std::to_string(keeper_) + "/children");
    return children.empty();
  }));
}

TEST_F(ServiceTest, ASocketAndAServiceComeTogether) {
  auto agent = Attach();
  const UniqueFd socket(open("/dev/null", O_RDONLY | O_CLOEXEC));
  SendStart(agent.get(), Shell(1, "exit 0"), socket.get());
  auto answer = agent->Expect(rank::kError);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->message.args[0], static_cast<uint64_t>(EINVAL));
  rank::StartSpec without = Shell(1, "exit 0");
  without.service = {"/bin/true"};
  SendStart(agent.get(), without);
  answer = agent->Expect(rank::kError);
  ASSERT_NE(answer, nullptr);
  EXPECT_NE(answer->payload.find("together"), std::string::npos) << answer->payload;
}

TEST_F(KeeperTest, OlderRecordersLearnOfTheNewAttempt) {
  auto agent = Attach();
  SendStart(agent.get(), Shell(1, "exit 0"));
  const auto started = agent->Expect(rank::kStarted);
  ASSERT_NE(started, nullptr);
  ASSERT_EQ(started->fds.size(), 1u);
  Mapped recorder(started->fds[0].get());
  const char* reason = "";
  ASSERT_TRUE(rank::RecorderReader::Validate(recorder.base(), recorder.bytes(), &reason)) << reason;
  EXPECT_EQ(fcntl(started->fds[0].get(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_SHRINK | F_SEAL_GROW);
  const rank::RecorderWriter seen(recorder.base());
  EXPECT_TRUE(seen.AttemptIsCurrent());
  EXPECT_TRUE(seen.AgentPresent());
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  StartRanks(agent.get(), Shell(2, "exit 0"));
  EXPECT_FALSE(seen.AttemptIsCurrent());
}

TEST_F(KeeperTest, TheFenceKillsAllRanksAtItsDeadline) {
  auto agent = Attach();
  StartRanks(agent.get(), Spec(1, 2, {"/bin/sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"}));
  Message fence;
  fence.type = rank::kFence;
  fence.args[0] = static_cast<uint64_t>(NowMs() + 3'600'000) * 1'000'000;
  agent->Send(fence);
  fence.args[0] = 0;
  agent->Send(fence);  // taken back
  const uint64_t deadline = static_cast<uint64_t>(NowMs() + 150) * 1'000'000;
  fence.args[0] = deadline;
  agent->Send(fence);
  agent->Poll();
  EXPECT_FALSE(agent->HasSeen(rank::kExited));
  agent->Close();  // the keeper needs no agent for it
  EXPECT_TRUE(Eventually([&] {
    const std::string exits = ReadFile(keeper_dir_ + "/exits");
    return std::count(exits.begin(), exits.end(), '\n') == 2;
  }));
  std::istringstream lines(ReadFile(keeper_dir_ + "/exits"));
  for (uint64_t attempt, r, pid, status, ns; lines >> attempt >> r >> pid >> status >> ns;) {
    EXPECT_EQ(status, Status(CLD_KILLED, SIGKILL));
    EXPECT_GE(ns, deadline);
  }
  auto second = Attach();
  StartRanks(second.get(), Shell(2, "sleep 1000"));
  fence.args[0] = static_cast<uint64_t>(NowMs()) * 1'000'000;
  second->Send(fence);
  EXPECT_NE(second->Expect(rank::kFenced), nullptr);
  EXPECT_NE(second->ExpectOfRank(rank::kExited, 0), nullptr);
}

TEST_F(KeeperTest, ALotOfOutputIsBoundedAndItsBothEndsAreKept) {
  auto agent = Attach();
  // 12 MB into a limit of 4 MiB.
  rank::StartSpec spec = Shell(1,
                               "echo the first line; seq -f '%.0f: a line of output that is long "
                               "enough to matter' 200000; echo the last line");
  spec.log_limit_bytes = 4 << 20;
  StartRanks(agent.get(), spec);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  const std::string head = Log(0, 1), tail = ReadFile(LogPath(0, 1) + ".tail"),
                    older = ReadFile(LogPath(0, 1) + ".tail.old");
  EXPECT_EQ(head.substr(0, 15), "the first line\n");
  EXPECT_GE(head.size(), 64u << 10);
  EXPECT_TRUE(
      Eventually([&] { return ReadFile(LogPath(0, 1) + ".tail").ends_with("\nthe last line\n"); }));
  EXPECT_GE(tail.size() + older.size(), 1u << 20);
  EXPECT_LE(head.size() + tail.size() + older.size(), (4u << 20) + 4096);
}

TEST_F(KeeperTest, OutputWithoutEndDelaysNothingElse) {
  auto agent = Attach();
  rank::StartSpec spec = Spec(1, 2, {"/bin/sh", "-c", "yes a line that comes again and again"});
  spec.log_limit_bytes = 3 << 20;
  spec.ranks[1].args = {"/bin/sh", "-c", "exit 3"};
  StartRanks(agent.get(), spec);
  const auto exited = agent->ExpectOfRank(rank::kExited, 1);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 3));
  Signal(agent.get(), SIGKILL, 0, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
}

TEST_F(KeeperTest, AnotherUserWhenTheSpecSaysSo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: starts a rank as another user";
  auto agent = Attach();
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  rank::StartSpec spec = Shell(1, "id -u; id -g; id -G; exec sleep 1000");
  spec.uid = 65534;
  spec.gid = 65533;
  spec.groups = {65533, 44};
  spec.cwd = "/";
  const pid_t pid = StartRanks(agent.get(), spec)[0];
  EXPECT_TRUE(Eventually([&] { return Log(0, 1) == "65534\n65533\n65533 44\n"; })) << Log(0, 1);
  struct stat info;
  ASSERT_EQ(stat(LogPath(0, 1).c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  KillKeeper();  // the signal for the parent's death survived the change of user
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(pid); }));
}

TEST_F(KeeperTest, AnotherUserIsRefusedWithoutThePrivilege) {
  if (geteuid() == 0) GTEST_SKIP() << "root may become anybody";
  auto agent = Attach();
  rank::StartSpec spec = Shell(1, "exit 0");
  spec.uid = geteuid() + 1;
  SendStart(agent.get(), spec);
  const auto failed = agent->ExpectOfRank(rank::kStartFailed, 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->message.args[2], static_cast<uint64_t>(rank::kStageUser));
}

TEST_F(KeeperTest, QuitOnlyWhenNoRankLives) {
  auto agent = Attach();
  StartRanks(agent.get(), Shell(1, "sleep 1000"));
  Message quit;
  quit.type = rank::kQuit;
  agent->Send(quit);
  const auto refused = agent->Expect(rank::kError);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->message.args[0], static_cast<uint64_t>(EBUSY));
  Signal(agent.get(), SIGKILL, 0, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  agent->Send(quit);
  EXPECT_TRUE(agent->WaitForEnd());
  const int status = ReapKeeper();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_NE(access(socket_.c_str(), F_OK), 0);
  EXPECT_NE(access((keeper_dir_ + "/pid").c_str(), F_OK), 0);
}

TEST_F(KeeperTest, ASecondKeeperOfTheDirectoryIsRefused) {
  const std::string command =
      Binary("holdfast-keeper") + " --job 42 --dir " + keeper_dir_ + " 2>" + dir_.Sub("second");
  const int status = system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
  EXPECT_NE(ReadFile(dir_.Sub("second")).find("another keeper"), std::string::npos);
  auto agent = Attach();  // the first still serves
}

TEST_F(KeeperTest, UsageAndDirectoriesAreChecked) {
  const std::string binary = Binary("holdfast-keeper");
  const auto status_of = [&](const std::string& arguments) {
    const int status = system((binary + " " + arguments + " 2>" + dir_.Sub("err")).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(status_of(""), 2);
  EXPECT_EQ(status_of("--dir " + dir_.path() + " --job 0"), 2);
  EXPECT_EQ(status_of("--dir " + dir_.path() + " --job -1"), 2);
  EXPECT_EQ(status_of("--dir " + dir_.path() + " --job 1 --max-ranks 65"), 2);
  EXPECT_EQ(status_of("--dir " + dir_.Sub("missing") + " --job 1"), 4);
  EXPECT_NE(ReadFile(dir_.Sub("err")).find("missing"), std::string::npos);
  const std::string deep = dir_.Sub(std::string(90, 'd'));
  std::filesystem::create_directory(deep);
  EXPECT_EQ(status_of("--dir " + deep + " --job 1"), 4);
  EXPECT_NE(ReadFile(dir_.Sub("err")).find("state directory path too long"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(deep) || !std::filesystem::exists(deep + "/sock"));
}

}  // namespace
}  // namespace holdfast::test_rank
