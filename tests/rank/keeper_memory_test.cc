// SPDX-License-Identifier: Apache-2.0
// The real keeper with holdfast-test-rank: memory that outlives ranks, an agent that comes and
// goes, and ranks that write nonsense.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/rank/arena.h"
#include "base/rank/exit_code.h"
#include "base/rank/recorder.h"
#include "tests/rank/keeper_harness.h"
#include "tests/rank/state.h"

namespace holdfast::test_rank {
namespace {

using rank::Message;

constexpr uint64_t kStateBytes = 64 << 10;

class MemoryTest : public KeeperTest {
 protected:
  std::unique_ptr<AgentSide> AttachWithStore(
      TinyStore** store, std::vector<std::unique_ptr<Packet>>* states = nullptr) {
    // The packets of the attach itself are kept in order; requests only come after it.
    auto agent = Attach(states);
    if (store_ == nullptr) {
      store_ = std::make_unique<TinyStore>(agent.get());
    } else {
      store_->MoveTo(agent.get());
    }
    TinyStore* raw = store_.get();
    agent->on_packet = [raw](const Packet& packet) { return raw->Handle(packet); };
    *store = raw;
    return agent;
  }
  rank::StartSpec TestRanks(uint64_t attempt, uint32_t ranks, std::vector<std::string> arguments,
                            const std::string& restore = "scratch") {
    std::vector<std::string> args = {Binary("holdfast-test-rank"), "--bytes",
                                     std::to_string(kStateBytes)};
    args.insert(args.end(), arguments.begin(), arguments.end());
    rank::StartSpec spec = Spec(attempt, ranks, args);
    spec.env.push_back("HOLDFAST_RESTORE=" + restore);
    spec.env.push_back("HOLDFAST_SNAPSHOT_EVERY=1");
    return spec;
  }
  // Waits for a snapshot of at least `step` sealed by `rank`.
  bool WaitSealed(AgentSide* agent, uint64_t rank, uint64_t step) {
    return agent->Expect(rank::kSealedNote, [&](const Packet& p) {
      return p.message.args[0] == rank && p.message.args[1] >= step;
    }) != nullptr;
  }

  std::unique_ptr<TinyStore> store_;
};

uint64_t NewestStep(const Mapped& arena) {
  const auto* header = static_cast<const rank::ArenaHeader*>(arena.base());
  uint64_t newest = 0;
  for (uint32_t i = 0; i < header->buffers; ++i) {
    if (header->buffer[i].state.load() == rank::kBufferSealed)
      newest = std::max(newest, header->buffer[i].step);
  }
  return newest;
}

// What the state's first word and counter are after `steps` undisturbed steps.
std::vector<uint64_t> Reference(uint32_t rank, uint32_t world, uint64_t steps) {
  State state(1, rank, world, kStateBytes);
  for (uint64_t step = 1; step <= steps; ++step) state.Update(step);
  const ckpt::TensorView words = state.Tensors()[0];
  const auto* data = static_cast<const uint64_t*>(words.data);
  return std::vector<uint64_t>(data, data + words.bytes / 8);
}

// The bytes of model.words in the sealed buffer of `step`.
std::vector<uint64_t> InArena(const Mapped& arena, uint64_t step) {
  const auto* header = static_cast<const rank::ArenaHeader*>(arena.base());
  for (uint32_t i = 0; i < header->buffers; ++i) {
    if (header->buffer[i].state.load() != rank::kBufferSealed || header->buffer[i].step != step)
      continue;
    const char* buffer =
        static_cast<const char*>(arena.base()) + header->buffer_offset + i * header->buffer_stride;
    const auto* table = reinterpret_cast<const rank::TensorEntry*>(buffer);
    for (uint32_t t = 0; t < header->buffer[i].tensors; ++t) {
      if (strcmp(table[t].name, "model.words") != 0) continue;
      const auto* data =
          reinterpret_cast<const uint64_t*>(buffer + header->table_bytes + table[t].data_offset);
      return std::vector<uint64_t>(data, data + table[t].data_bytes / 8);
    }
  }
  return {};
}

TEST_F(MemoryTest, RanksMeetTrainAndSealThroughTheKeeper) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(), TestRanks(1, 2, {"--steps", "6"}));
  std::unique_ptr<Packet> notes[2] = {agent->ExpectOfRank(rank::kArenaNote, 0),
                                      agent->ExpectOfRank(rank::kArenaNote, 1)};
  for (uint64_t r = 0; r < 2; ++r) {
    ASSERT_NE(notes[r], nullptr);
    ASSERT_NE(agent->ExpectOfRank(rank::kHelloNote, r), nullptr);
    ASSERT_TRUE(WaitSealed(agent.get(), r, 6));
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(static_cast<uint32_t>(r), 1);
    ASSERT_EQ(notes[r]->fds.size(), 1u);
    const Mapped arena(notes[r]->fds[0].get());
    const char* reason = "";
    ASSERT_TRUE(rank::ValidateArena(arena.base(), arena.bytes(), &reason)) << reason;
    EXPECT_EQ(NewestStep(arena), 6u);
    EXPECT_EQ(InArena(arena, 6), Reference(static_cast<uint32_t>(r), 2, 6));
    struct stat info;
    ASSERT_EQ(fstat(notes[r]->fds[0].get(), &info), 0);
    EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, arena.bytes())
        << "pages were not allocated beforehand";
  }
  EXPECT_GT(store->requests(), 0u);
}

TEST_F(MemoryTest, AKilledRankLeavesItsSnapshotForTheNextAttempt) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(), TestRanks(1, 1, {"--steps", "1000000", "--step-ms", "1"}));
  const auto note = agent->ExpectOfRank(rank::kArenaNote, 0);
  ASSERT_NE(note, nullptr);
  const Mapped arena(note->fds[0].get());
  ASSERT_TRUE(WaitSealed(agent.get(), 0, 5));
  Signal(agent.get(), SIGKILL, rank::kAllRanks, 1);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  const uint64_t step = NewestStep(arena);
  ASSERT_GE(step, 5u);

  const std::string last = std::to_string(step + 3);
  SendStart(agent.get(),
            TestRanks(2, 1, {"--steps", last}, "snapshot:" + std::to_string(step) + ".1"));
  const auto started = agent->Expect(rank::kStarted);
  ASSERT_NE(started, nullptr);
  ASSERT_EQ(started->fds.size(), 2u) << "the arena of the attempt before belongs to the rank still";
  struct stat before, after;
  ASSERT_EQ(fstat(note->fds[0].get(), &before), 0);
  ASSERT_EQ(fstat(started->fds[1].get(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  const auto exited = agent->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(0, 2);
  EXPECT_NE(Log(0, 2).find("starts after step " + std::to_string(step) + " "), std::string::npos)
      << Log(0, 2);
  // Bit for bit what an undisturbed run would hold.
  EXPECT_EQ(InArena(arena, step + 3), Reference(0, 1, step + 3));
}

TEST_F(MemoryTest, ASnapshotWithAFlippedByteIsNotRestored) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(), TestRanks(1, 1, {"--steps", "3"}));
  const auto note = agent->ExpectOfRank(rank::kArenaNote, 0);
  ASSERT_NE(note, nullptr);
  const Mapped arena(note->fds[0].get());
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  ASSERT_EQ(NewestStep(arena), 3u);
  const auto* header = static_cast<const rank::ArenaHeader*>(arena.base());
  char* bytes = static_cast<char*>(arena.base());
  for (uint32_t i = 0; i < header->buffers; ++i) {
    bytes[header->buffer_offset + i * header->buffer_stride + header->table_bytes + 1000] ^= 4;
  }
  StartRanks(agent.get(), TestRanks(2, 1, {"--steps", "4"}, "snapshot:3.1"));
  auto exited = agent->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, rank::kExitCorrupt));
  EXPECT_NE(Log(0, 2).find("model.words"), std::string::npos) << Log(0, 2);
  // A snapshot that is not there at all.
  StartRanks(agent.get(), TestRanks(3, 1, {"--steps", "4"}, "snapshot:77.1"));
  exited = agent->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 3));
  EXPECT_NE(Log(0, 3).find("does not hold snapshot 77.1"), std::string::npos) << Log(0, 3);
}

TEST_F(MemoryTest, AnotherLayoutGetsAnotherArenaAndDroppedOnesAreFreed) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(), TestRanks(1, 1, {"--steps", "2"}));
  const auto first = agent->ExpectOfRank(rank::kArenaNote, 0);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  StartRanks(agent.get(), TestRanks(2, 1, {"--steps", "2", "--bytes", "300000"}));
  const auto second = agent->ExpectOfRank(rank::kArenaNote, 0);
  ASSERT_NE(second, nullptr);
  ASSERT_NE(agent->ExpectOfRank(rank::kExited, 0), nullptr);
  struct stat one, two;
  ASSERT_EQ(fstat(first->fds[0].get(), &one), 0);
  ASSERT_EQ(fstat(second->fds[0].get(), &two), 0);
  EXPECT_NE(one.st_ino, two.st_ino);
  EXPECT_GT(two.st_size, one.st_size);
  Message drop;
  drop.type = rank::kDropArenas;
  agent->Send(drop);
  std::vector<std::unique_ptr<Packet>> states;
  auto again = Attach(&states);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0]->fds.size(), 1u) << "only the recorder is left";
}

TEST_F(MemoryTest, AnArenaThatCannotBeIsRefusedAndTheRankMayGoOn) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(), TestRanks(1, 1, {"--steps", "2", "--bytes", "1000000000000"}));
  const auto exited = agent->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_NE(exited->message.args[2], Status(CLD_EXITED, 0));
}

TEST_F(MemoryTest, AnAgentThatComesBackFindsEverythingAndRanksNeverNotice) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  const std::vector<pid_t> pids =
      StartRanks(agent.get(), TestRanks(1, 2, {"--steps", "120", "--step-ms", "2"}));
  ASSERT_TRUE(WaitSealed(agent.get(), 0, 10));
  ASSERT_TRUE(WaitSealed(agent.get(), 1, 10));
  uint64_t last_seen = 10;
  for (int round = 0; round < 3; ++round) {
    agent->Close();
    std::vector<std::unique_ptr<Packet>> states;
    auto next = AttachWithStore(&store, &states);
    ASSERT_EQ(states.size(), 2u);
    for (const auto& state : states) {
      const uint64_t r = state->message.args[0];
      EXPECT_EQ(static_cast<pid_t>(state->message.args[1]), pids[r]);
      EXPECT_EQ(state->message.args[2], static_cast<uint64_t>(rank::kRankRunning));
      EXPECT_EQ(state->message.attempt, 1u);
      ASSERT_EQ(state->fds.size(), 2u);
      const Mapped recorder(state->fds[0].get());
      const char* reason = "";
      ASSERT_TRUE(rank::RecorderReader::Validate(recorder.base(), recorder.bytes(), &reason))
          << reason;
      rank::RecorderReader reader(recorder.base(), recorder.bytes());
      rank::Progress progress;
      ASSERT_TRUE(Eventually([&] { return reader.ReadProgress(&progress); }));
      EXPECT_GE(progress.steps_done, 1u);
      EXPECT_EQ(reader.control()->agent_present.load(), 1u);
    }
    agent = std::move(next);
    last_seen += 10;
    ASSERT_TRUE(WaitSealed(agent.get(), 0, last_seen));
  }
  for (uint64_t r = 0; r < 2; ++r) {
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(static_cast<uint32_t>(r), 1);
  }
}

TEST_F(MemoryTest, RequestsOutstandingAtTheAgentsDeathAreSentAgainOnce) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  // Takes requests in and answers none: as an agent that dies in the middle.
  agent->on_packet = nullptr;
  StartRanks(agent.get(), TestRanks(1, 2, {"--steps", "3"}));
  const auto first = agent->Expect(rank::kForward);
  const auto second = agent->Expect(
      rank::kForward, [&](const Packet& p) { return p.message.peer != first->message.peer; });
  ASSERT_NE(second, nullptr);
  agent->Close();
  agent = AttachWithStore(&store);
  for (uint64_t r = 0; r < 2; ++r) {
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(static_cast<uint32_t>(r), 1);
  }
}

TEST_F(MemoryTest, RanksStartedWithoutAnAgentWaitForIt) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  const pid_t pid =
      StartRanks(agent.get(), TestRanks(1, 1, {"--steps", "30", "--step-ms", "1"}))[0];
  agent->Close();
  // It runs into its first meeting, where the store is needed.
  std::vector<std::unique_ptr<Packet>> states;
  auto probe = AttachWithStore(&store, &states);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_TRUE(ProcessLives(pid));
  const auto exited = probe->ExpectOfRank(rank::kExited, 0);
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(0, 1);
}

TEST_F(MemoryTest, TheNewestAgentWinsAndThePresentWordFollows) {
  auto first = Attach();
  SendStart(first.get(), Shell(1, "sleep 1000"));
  const auto started = first->Expect(rank::kStarted);
  ASSERT_NE(started, nullptr);
  const Mapped recorder(started->fds[0].get());
  const rank::RecorderWriter seen(recorder.base());
  auto second = Attach();
  EXPECT_TRUE(first->WaitForEnd());
  EXPECT_TRUE(seen.AgentPresent());
  second->Close();
  EXPECT_TRUE(Eventually([&] { return !seen.AgentPresent(); }));
  Signal(Attach().get(), SIGKILL, 0, 1);
}

TEST_F(MemoryTest, AnAgentThatDoesNotReadIsCutAndRanksGoOn) {
  auto agent = Attach();
  const pid_t pid = StartRanks(agent.get(), Shell(1, "exec sleep 1000"))[0];
  // Each of these is refused with an answer that nobody reads.
  Message wrong;
  wrong.type = rank::kSignal;
  wrong.args[2] = 99;
  int sent = 0;
  while (sent < 200'000 && rank::SendMessage(agent->fd(), wrong, nullptr, nullptr, 0) == 0) ++sent;
  EXPECT_LT(sent, 200'000) << "the keeper queued without bound";
  EXPECT_TRUE(ProcessLives(pid));
  auto second = Attach();
  Signal(second.get(), SIGKILL, 0, 1);
  EXPECT_NE(second->ExpectOfRank(rank::kExited, 0), nullptr);
}

TEST_F(MemoryTest, NonsenseFromARankHarmsNobody) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  StartRanks(agent.get(),
             TestRanks(1, 2, {"--steps", "8", "--nonsense-at", "3", "--fault-rank", "1"}));
  for (uint64_t r = 0; r < 2; ++r) {
    const auto exited = agent->ExpectOfRank(rank::kExited, r);
    ASSERT_NE(exited, nullptr);
    EXPECT_EQ(exited->message.args[2], Status(CLD_EXITED, 0)) << Log(static_cast<uint32_t>(r), 1);
  }
  const std::string log = ReadFile(keeper_dir_ + "/keeper.log");
  EXPECT_NE(log.find("not a packet of the rank interface"), std::string::npos) << log;
  EXPECT_NE(log.find("may not attach"), std::string::npos) << log;
  EXPECT_NE(log.find("is not one of a rank's"), std::string::npos) << log;
}

TEST_F(MemoryTest, StrangersAreNotWelcome) {
  auto agent = Attach();
  StartRanks(agent.get(), Shell(1, "exec sleep 1000"));
  AgentSide stranger(socket_);  // this process is no rank's descendant
  Message hello;
  hello.type = rank::kHello;
  hello.attempt = 1;
  hello.args[0] = static_cast<uint64_t>(getpid());
  stranger.Send(hello);
  const auto refused = stranger.Expect(rank::kError);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->message.args[0], static_cast<uint64_t>(EPERM));
  EXPECT_TRUE(stranger.WaitForEnd());
  for (const std::string& bytes :
       {std::string("x"), std::string(64, '\xff'), std::string(200, '\0')}) {
    AgentSide noise(socket_);
    noise.SendRaw(bytes);
    EXPECT_TRUE(noise.WaitForEnd());
  }
  // Connections that say nothing do not keep the agent out.
  std::vector<std::unique_ptr<AgentSide>> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(std::make_unique<AgentSide>(socket_));
  auto again = Attach();
  Signal(again.get(), SIGKILL, 0, 1);
  EXPECT_NE(again->ExpectOfRank(rank::kExited, 0), nullptr);
}

TEST_F(MemoryTest, NonsenseFromTheAgentClosesItsConnectionOnly) {
  auto agent = Attach();
  const pid_t pid = StartRanks(agent.get(), Shell(1, "exec sleep 1000"))[0];
  Message reply;
  reply.type = rank::kReply;
  reply.peer = 4711;
  agent->Send(reply);                           // shorter than a packet
  agent->Send(reply, std::string(64, '\xee'));  // not a packet
  Message alien;
  alien.type = rank::kHello;
  agent->Send(alien);
  EXPECT_TRUE(agent->WaitForEnd());
  EXPECT_TRUE(ProcessLives(pid));
  auto second = Attach();
  second->SendRaw("short");
  EXPECT_TRUE(second->WaitForEnd());
  EXPECT_TRUE(ProcessLives(pid));
}

TEST_F(MemoryTest, TheKeeperLeaksNoDescriptor) {
  TinyStore* store = nullptr;
  auto agent = AttachWithStore(&store);
  const auto open = [&] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(keeper_) + "/fd"))
      ++count;
    return count;
  };
  size_t after_first = 0;
  for (uint64_t attempt = 1; attempt <= 6; ++attempt) {
    StartRanks(agent.get(), TestRanks(attempt, 2, {"--steps", "2"}));
    for (uint64_t r = 0; r < 2; ++r) ASSERT_NE(agent->ExpectOfRank(rank::kExited, r), nullptr);
    // Both pipes and connections of the attempt close on their own; recorder and arena of each rank
    // stay.
    if (attempt == 1) {
      size_t previous = 0;
      ASSERT_TRUE(Eventually(
          [&] { return std::exchange(previous, open()) == open() && store->requests() > 0; }));
      after_first = open();
    } else {
      EXPECT_TRUE(Eventually([&] { return open() <= after_first; }))
          << open() << " open, " << after_first << " after the first";
    }
  }
}

}  // namespace
}  // namespace holdfast::test_rank
