// SPDX-License-Identifier: Apache-2.0
// Standbys of the real keeper: a shell that waits as holdfast-standby.py does.
#include <signal.h>

#include "gtest/gtest.h"
#include "tests/rank/keeper_harness.h"

namespace holdfast::test_rank {
namespace {

// Waits for the byte, writes what it was told to $1 and then is a rank that does not end.
constexpr char kStandby[] =
    "test \"$(head -c 1 <&3)\" = g || exit 9; tr '\\0' '\\n' <&4 > \"$1.tmp\"; "
    "mv \"$1.tmp\" \"$1\"; exec sleep 1000";

class StandbyTest : public KeeperTest {
 protected:
  rank::StartSpec WithStandby(uint64_t attempt, uint32_t ranks, uint64_t after_ms = 0) {
    rank::StartSpec spec = Spec(attempt, ranks, {"/bin/sleep", "1000"});
    spec.standby = {"/bin/sh", "-c", kStandby, "standby", told_};
    spec.standby_after_ms = after_ms;
    return spec;
  }
  // The pid that the next note of a standby of `number` names.
  pid_t Noted(AgentSide* agent, uint64_t number) {
    const auto note = agent->ExpectOfRank(rank::kStandbyNote, number);
    return note == nullptr ? -1 : static_cast<pid_t>(note->message.args[1]);
  }
  pid_t Started(AgentSide* agent, uint64_t attempt) {
    const auto started = agent->ExpectOfStart(attempt);
    return started == nullptr ? -1 : static_cast<pid_t>(started->message.args[2]);
  }
  void KillRank(AgentSide* agent, uint64_t attempt) {
    Signal(agent, SIGKILL, rank::kAllRanks, attempt);
    EXPECT_NE(
        agent->Expect(rank::kExited, [&](const Packet& p) { return p.message.args[4] == attempt; }),
        nullptr);
  }

  const std::string told_ = dir_.path() + "/told";
};

TEST_F(StandbyTest, ItTakesTheRanksPlaceInTheNextAttempt) {
  auto agent = Attach();
  SendStart(agent.get(), WithStandby(1, 1));
  const pid_t first = Started(agent.get(), 1);
  const pid_t standby = Noted(agent.get(), 0);
  ASSERT_GT(standby, 1);
  ASSERT_NE(standby, first);
  KillRank(agent.get(), 1);
  EXPECT_TRUE(ProcessLives(standby)) << "the end of an attempt is what it waits for";
  rank::StartSpec next = WithStandby(2, 1);
  next.env.push_back("ATTEMPT=second");
  next.cwd = "/usr";
  SendStart(agent.get(), next);
  EXPECT_EQ(Noted(agent.get(), 0), 0);
  EXPECT_EQ(Started(agent.get(), 2), standby);
  ASSERT_TRUE(Eventually([&] { return !ReadFile(told_).empty(); }));
  const std::string told = "\n" + ReadFile(told_);
  for (const char* entry :
       {"\nenv=ATTEMPT=second\n", "\ncwd=/usr\n", "\nenv=HOLDFAST_KEEPER_RANK=2.0\n"})
    EXPECT_NE(told.find(entry), std::string::npos) << entry << told;
  EXPECT_GT(Noted(agent.get(), 0), 1) << "the next one gets ready";
  Signal(agent.get(), SIGKILL, 0, 2);
  EXPECT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr) << "it is a rank like any other";
}

TEST_F(StandbyTest, AnotherCommandStartsAnew) {
  auto agent = Attach();
  SendStart(agent.get(), WithStandby(1, 1));
  ASSERT_GT(Started(agent.get(), 1), 1);
  const pid_t standby = Noted(agent.get(), 0);
  ASSERT_GT(standby, 1);
  KillRank(agent.get(), 1);
  rank::StartSpec other = WithStandby(2, 1);
  other.standby.back() += ".other";
  SendStart(agent.get(), other);
  const pid_t rank = Started(agent.get(), 2);
  EXPECT_GT(rank, 1);
  EXPECT_NE(rank, standby);
  EXPECT_TRUE(Eventually([&] { return !ProcessLives(standby); }));
}

TEST_F(StandbyTest, NoneForAnAttemptThatLosesARankBefore) {
  auto agent = Attach();
  SendStart(agent.get(), WithStandby(1, 2, 300));
  ASSERT_GT(Started(agent.get(), 1), 1);
  KillRank(agent.get(), 1);
  // The fence of the next second comes after the time of the standbys.
  rank::Message fence;
  fence.type = rank::kFence;
  fence.args[0] = static_cast<uint64_t>(NowMs() + 1'000) * 1'000'000;
  agent->Send(fence);
  ASSERT_NE(agent->Expect(rank::kFenced), nullptr);
  EXPECT_FALSE(agent->HasSeen(rank::kStandbyNote));
}

TEST_F(StandbyTest, AnOrderlyEndAndAKeeperThatQuitsTakeThemAlong) {
  auto agent = Attach();
  SendStart(agent.get(), WithStandby(1, 2));
  const pid_t standbys[] = {Noted(agent.get(), 0), Noted(agent.get(), 1)};
  ASSERT_TRUE(ProcessLives(standbys[0]) && ProcessLives(standbys[1]));
  Signal(agent.get(), SIGTERM, rank::kAllRanks, 1);
  for (const pid_t pid : standbys) EXPECT_TRUE(Eventually([&] { return !ProcessLives(pid); }));
  for (const uint64_t number : {0, 1})
    ASSERT_NE(agent->ExpectOfRank(rank::kExited, number), nullptr);
  SendStart(agent.get(), WithStandby(2, 1));
  ASSERT_GT(Started(agent.get(), 2), 1);
  pid_t last = 0;
  while (last == 0) last = Noted(agent.get(), 0);
  KillRank(agent.get(), 2);
  ASSERT_TRUE(ProcessLives(last));
  rank::Message quit;
  quit.type = rank::kQuit;
  agent->Send(quit);
  EXPECT_TRUE(agent->WaitForEnd());
  EXPECT_FALSE(ProcessLives(last)) << "gone before the keeper is";
}

TEST_F(StandbyTest, AnAgentThatComesBackIsToldOfThem) {
  auto agent = Attach();
  SendStart(agent.get(), WithStandby(1, 1));
  const pid_t standby = Noted(agent.get(), 0);
  agent->Close();
  agent = Attach();
  EXPECT_EQ(Noted(agent.get(), 0), standby);
}

}  // namespace
}  // namespace holdfast::test_rank
