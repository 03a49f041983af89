// SPDX-License-Identifier: Apache-2.0
#include "ckpt/client/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

// Two tensors: one that starts on a page, one that does not.
constexpr size_t kLarge = 20000, kSmall = 10;

class Arena {
 public:
  explicit Arena(uint32_t buffers = 2, uint64_t capacity = 128 << 10) {
    bytes_ = rank::ArenaLayout(capacity, 8, buffers, nullptr);
    base_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rank::ArenaLayout(capacity, 8, buffers, header());
  }
  ~Arena() { ::munmap(base_, bytes_); }
  void* base() { return base_; }
  rank::ArenaHeader* header() { return static_cast<rank::ArenaHeader*>(base_); }
  rank::BufferHeader& buffer(uint32_t i) { return header()->buffer[i]; }
  uint32_t state(uint32_t i) { return buffer(i).state.load(); }
  char* table(uint32_t i) {
    return static_cast<char*>(base_) + header()->buffer_offset + i * header()->buffer_stride;
  }
  char* data(uint32_t i) { return table(i) + header()->table_bytes; }
  bool Move(uint32_t i, uint32_t from, uint32_t to) {
    return buffer(i).state.compare_exchange_strong(from, to);
  }

 private:
  void* base_;
  size_t bytes_;
};

// The state of a rank after `step`.
struct State {
  std::vector<float> large = std::vector<float>(kLarge);
  std::vector<uint8_t> small = std::vector<uint8_t>(kSmall);
  explicit State(uint64_t step = 0) {
    for (size_t i = 0; i < kLarge; ++i) large[i] = static_cast<float>(step * 1000 + i);
    for (size_t i = 0; i < kSmall; ++i) small[i] = static_cast<uint8_t>(step * 7 + i);
  }
  bool operator==(const State&) const = default;
  std::vector<TensorView> views() {
    return {{"large", rank::kF32, {2 * kLarge}, {kLarge}, {kLarge}, 0, large.data(), kLarge * 4},
            {"small", rank::kU8, {kSmall}, {0}, {kSmall}, 1, small.data(), kSmall}};
  }
};

struct Taken {
  bool ok = false;
  uint32_t buffer = 99;
  std::string reason;
};

Taken Take(SnapshotWriter& writer, uint64_t attempt, uint64_t step, bool persist = false,
           bool agent = true) {
  State state(step);
  Taken taken;
  taken.ok = writer.Take(state.views(), attempt, step, step * 8, persist, agent, &taken.buffer,
                         &taken.reason);
  return taken;
}

TEST(DigestTest, CopyGivesTheDigestOfTheBytesAtEverySize) {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{17}, size_t{131072}, size_t{131073}, size_t{1000003}}) {
    std::vector<char> from(bytes), to(bytes + 1, 'x');
    for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(i * 31 >> 3);
    EXPECT_EQ(CopyAndDigest(to.data(), from.data(), bytes), DigestBytes(from.data(), bytes))
        << bytes;
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << bytes;
    EXPECT_EQ(to[bytes], 'x') << "wrote past the end";
  }
}

TEST(DigestTest, KnownAnswer) {
  // XXH3-128 of the empty input, from the reference implementation's documentation.
  const rank::Digest128 empty = DigestBytes("", 0);
  EXPECT_EQ(empty.high, 0x99aa06d3014798d8ull);
  EXPECT_EQ(empty.low, 0x6001c324468d497full);
}

TEST(SnapshotTest, RestoresWhatWasTaken) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken taken = Take(writer, 1, 5, true);
  ASSERT_TRUE(taken.ok) << taken.reason;
  EXPECT_EQ(arena.state(taken.buffer), rank::kBufferSealed);
  EXPECT_EQ(arena.buffer(taken.buffer).persist, 1u);
  State back;
  uint64_t samples = 0;
  std::string reason;
  ASSERT_TRUE(RestoreSnapshot(arena.base(), taken.buffer, back.views(), &samples, &reason))
      << reason;
  EXPECT_EQ(back, State(5));
  EXPECT_EQ(samples, 40u);
}

TEST(SnapshotTest, LargeTensorsStartOnAPage) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  State state(1);
  std::vector<TensorView> views = state.views();
  std::swap(views[0], views[1]);  // the small one first
  uint32_t buffer;
  std::string reason;
  ASSERT_TRUE(writer.Take(views, 1, 1, 0, false, true, &buffer, &reason)) << reason;
  const auto* table = reinterpret_cast<const rank::TensorEntry*>(arena.table(buffer));
  EXPECT_EQ(table[0].data_offset % 64, 0u);
  EXPECT_EQ(table[1].data_offset % rank::kArenaAlign, 0u);
  EXPECT_GE(table[1].data_offset, kSmall);
  EXPECT_LE(arena.buffer(buffer).data_bytes, SnapshotBytes(views));
}

TEST(SnapshotTest, LayoutHashIsThatOfTheLayoutAlone) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken first = Take(writer, 1, 1), second = Take(writer, 1, 2);
  ASSERT_TRUE(first.ok && second.ok);
  EXPECT_EQ(arena.buffer(first.buffer).layout_hash, arena.buffer(second.buffer).layout_hash);
  State state(3);
  std::vector<TensorView> views = state.views();
  views[0].box_offset = {0};
  uint32_t buffer;
  std::string reason;
  ASSERT_TRUE(writer.Take(views, 1, 3, 0, false, true, &buffer, &reason)) << reason;
  EXPECT_NE(arena.buffer(buffer).layout_hash, arena.buffer(second.buffer).layout_hash);
}

TEST(SnapshotTest, RefusesWhatDoesNotFitAndNamesIt) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  struct Case {
    void (*change)(TensorView*);
    const char* text;
  };
  const Case cases[] = {
      {[](TensorView* t) { t->name = ""; }, "1 to 159"},
      {[](TensorView* t) { t->name = std::string(160, 'n'); }, "1 to 159"},
      {[](TensorView* t) { t->dtype = 77; }, "'large': unknown element type 77"},
      {[](TensorView* t) { t->bytes += 4; }, "'large'"},
      {[](TensorView* t) { t->box_offset = {kLarge + 1}; }, "'large': its box leaves"},
      {[](TensorView* t) {
         t->box_size = {1, 1};
       },
       "same length"},
      {[](TensorView* t) {
         t->global_shape = {~0ull};
         t->box_offset = {0};
         t->box_size = {~0ull};
       },
       "overflows"},
      {[](TensorView* t) { t->data = nullptr; }, "no data"},
  };
  for (const Case& c : cases) {
    State state(1);
    std::vector<TensorView> views = state.views();
    c.change(&views[0]);
    uint32_t buffer;
    std::string reason;
    EXPECT_FALSE(writer.Take(views, 1, 1, 0, false, true, &buffer, &reason)) << c.text;
    EXPECT_THAT(reason, HasSubstr(c.text));
  }
  for (uint32_t i = 0; i < 2; ++i)
    EXPECT_EQ(arena.state(i), rank::kBufferFree) << "a refusal must claim nothing";
}

TEST(SnapshotTest, RefusesMoreThanTheArenaHolds) {
  Arena arena(2, 4096);
  SnapshotWriter writer(arena.base());
  const Taken taken = Take(writer, 1, 1);
  EXPECT_FALSE(taken.ok);
  EXPECT_THAT(taken.reason, HasSubstr("does not fit into the arena's buffers of 4096 bytes"));
  State state(1);
  std::vector<TensorView> many;
  for (int i = 0; i < 40; ++i) many.push_back(state.views()[1]);
  uint32_t buffer;
  std::string reason;
  EXPECT_FALSE(writer.Take(many, 1, 1, 0, false, true, &buffer, &reason));
  EXPECT_THAT(reason, HasSubstr("40 tensors do not fit"));
}

TEST(SnapshotTest, NeverOverwritesTheNewestSealed) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  uint32_t last = 99;
  for (uint64_t step = 1; step <= 6; ++step) {
    const Taken taken = Take(writer, 1, step);
    ASSERT_TRUE(taken.ok) << taken.reason;
    EXPECT_NE(taken.buffer, last);
    last = taken.buffer;
  }
  Arena one(1);
  SnapshotWriter single(one.base());
  ASSERT_TRUE(Take(single, 1, 1).ok);
  EXPECT_FALSE(single.Ready(true));
  EXPECT_FALSE(Take(single, 1, 2).ok);
}

TEST(SnapshotTest, WhatWaitsToBeWrittenIsKeptWhileAnAgentIsThere) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken first = Take(writer, 1, 1, /*persist=*/true);
  ASSERT_TRUE(first.ok);
  ASSERT_TRUE(Take(writer, 1, 2).ok);
  EXPECT_FALSE(writer.Ready(/*agent_present=*/true));
  EXPECT_FALSE(SnapshotWriter(arena.base()).Ready(true))
      << "the arena says it, not the writer's memory";
  EXPECT_FALSE(SnapshotWriter(arena.base()).Ready(true, 1));
  const Taken refused = Take(writer, 1, 3);
  EXPECT_FALSE(refused.ok);
  EXPECT_THAT(refused.reason, HasSubstr("no buffer"));
  EXPECT_TRUE(writer.Ready(/*agent_present=*/false));
  arena.buffer(first.buffer).persisted.store(1);
  EXPECT_TRUE(writer.Ready(true));
  const Taken third = Take(writer, 1, 3);
  ASSERT_TRUE(third.ok);
  EXPECT_EQ(third.buffer, first.buffer);
  EXPECT_EQ(arena.buffer(third.buffer).persisted.load(), 0u);
}

TEST(SnapshotTest, WithoutAnAgentAWaitingOneMayBeSuperseded) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken first = Take(writer, 1, 1, true, false);
  ASSERT_TRUE(Take(writer, 1, 2, true, false).ok);
  const Taken third = Take(writer, 1, 3, true, false);
  ASSERT_TRUE(third.ok);
  EXPECT_EQ(third.buffer, first.buffer);
}

TEST(SnapshotTest, WhatAnOlderAttemptWantedWrittenDoesNotBlockANewOne) {
  Arena arena;
  {
    SnapshotWriter writer(arena.base());
    ASSERT_TRUE(Take(writer, 1, 1, true).ok);
    ASSERT_TRUE(Take(writer, 1, 2, true).ok);
  }
  SnapshotWriter writer(arena.base());
  EXPECT_TRUE(writer.Ready(true, 2));
  EXPECT_TRUE(Take(writer, 2, 1).ok);
}

TEST(SnapshotTest, ABufferThatIsBeingWrittenIsNeverTaken) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken first = Take(writer, 1, 1);
  ASSERT_TRUE(arena.Move(first.buffer, rank::kBufferSealed, rank::kBufferWriting));
  ASSERT_TRUE(Take(writer, 1, 2).ok);
  EXPECT_FALSE(writer.Ready(false));
  EXPECT_FALSE(Take(writer, 1, 3, false, false).ok);
  ASSERT_TRUE(arena.Move(first.buffer, rank::kBufferWriting, rank::kBufferSealed));
  EXPECT_TRUE(Take(writer, 1, 3).ok);
}

TEST(SnapshotTest, StepsGrowWithinAnAttemptAndAnOlderAttemptIsRefused) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  ASSERT_TRUE(Take(writer, 2, 5).ok);
  EXPECT_FALSE(Take(writer, 2, 5).ok);
  EXPECT_FALSE(Take(writer, 2, 4).ok);
  const Taken old = Take(writer, 1, 9);
  EXPECT_FALSE(old.ok);
  EXPECT_THAT(old.reason, HasSubstr("older attempt 1"));
  EXPECT_TRUE(Take(writer, 3, 4).ok) << "a new attempt may go back";
}

TEST(SnapshotTest, SealReportsWhatWasNotCopiedAndFreesTheBuffer) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  State state(1);
  uint32_t buffer;
  std::string reason;
  ASSERT_TRUE(writer.Begin(state.views(), 1, 1, 0, false, true, &buffer, &reason));
  EXPECT_FALSE(writer.Ready(true)) << "one at a time";
  writer.CopyTensor(1, state.views()[1]);
  EXPECT_FALSE(writer.Seal(&reason));
  EXPECT_THAT(reason, HasSubstr("'large' was not copied"));
  EXPECT_EQ(arena.state(buffer), rank::kBufferFree);
  EXPECT_FALSE(writer.Seal(&reason));
  EXPECT_TRUE(Take(writer, 1, 1).ok) << "the same step may be tried again";
}

TEST(SnapshotTest, PartsMayComeInAnyOrder) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  State state(4);
  uint32_t buffer;
  std::string reason;
  ASSERT_TRUE(writer.Begin(state.views(), 1, 4, 0, false, true, &buffer, &reason));
  writer.CopyTensor(1, state.views()[1]);
  writer.CopyTensor(0, state.views()[0]);
  ASSERT_TRUE(writer.Seal(&reason)) << reason;
  State back;
  uint64_t samples;
  ASSERT_TRUE(RestoreSnapshot(arena.base(), buffer, back.views(), &samples, &reason)) << reason;
  EXPECT_EQ(back, State(4));
}

TEST(SnapshotTest, AFillTornByDeathIsFreedAtRestoreAndByTheNextWriter) {
  Arena arena;
  State state(2);
  uint32_t sealed = 99, torn = 99;
  std::string reason;
  {
    SnapshotWriter writer(arena.base());
    sealed = Take(writer, 1, 1).buffer;
    ASSERT_TRUE(writer.Begin(state.views(), 1, 2, 0, false, true, &torn, &reason));
    writer.CopyTensor(0, state.views()[0]);
  }  // the process dies here
  ASSERT_EQ(arena.state(torn), rank::kBufferFilling);
  State back;
  uint64_t samples;
  EXPECT_FALSE(RestoreSnapshot(arena.base(), torn, back.views(), &samples, &reason))
      << "torn data must not be restored";
  ASSERT_TRUE(RestoreSnapshot(arena.base(), sealed, back.views(), &samples, &reason)) << reason;
  EXPECT_EQ(back, State(1));
  EXPECT_EQ(arena.state(torn), rank::kBufferFree);

  arena.buffer(torn).state.store(rank::kBufferFilling);
  SnapshotWriter next(arena.base());
  EXPECT_EQ(arena.state(torn), rank::kBufferFree);
}

TEST(SnapshotTest, TheRestoredSnapshotIsTheNewestEvenBesideALaterOneBeingWritten) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken older = Take(writer, 1, 1), later = Take(writer, 1, 2);
  ASSERT_TRUE(older.ok && later.ok);
  ASSERT_TRUE(arena.Move(later.buffer, rank::kBufferSealed, rank::kBufferWriting));
  State back;
  uint64_t samples;
  std::string reason;
  ASSERT_TRUE(RestoreSnapshot(arena.base(), older.buffer, back.views(), &samples, &reason))
      << reason;
  EXPECT_EQ(arena.state(later.buffer), rank::kBufferWriting) << "it belongs to the agent";
  ASSERT_TRUE(arena.Move(later.buffer, rank::kBufferWriting, rank::kBufferSealed));
  SnapshotWriter next(arena.base());
  const Taken taken = Take(next, 2, 2);
  ASSERT_TRUE(taken.ok) << taken.reason;
  EXPECT_EQ(taken.buffer, later.buffer) << "the restored snapshot is all that the job has";
}

TEST(SnapshotTest, DiscardFreesAllButWhatTheAgentHolds) {
  Arena arena(3);
  SnapshotWriter writer(arena.base());
  const uint32_t a = Take(writer, 1, 1).buffer, b = Take(writer, 1, 2).buffer;
  ASSERT_TRUE(arena.Move(a, rank::kBufferSealed, rank::kBufferWriting));
  DiscardSnapshots(arena.base());
  EXPECT_EQ(arena.state(a), rank::kBufferWriting);
  EXPECT_EQ(arena.state(b), rank::kBufferFree);
}

TEST(SnapshotTest, RestoreWantsTheSameLayout) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken taken = Take(writer, 1, 1);
  State back;
  uint64_t samples;
  std::string reason;
  for (int change = 0; change < 3; ++change) {
    std::vector<TensorView> views = back.views();
    if (change == 0) views[0].name = "other";
    if (change == 1) views[0].box_offset = {0};
    if (change == 2) views[0].dtype = rank::kI32;
    EXPECT_FALSE(RestoreSnapshot(arena.base(), taken.buffer, views, &samples, &reason)) << change;
    EXPECT_THAT(reason, HasSubstr("is not in the snapshot"));
  }
  EXPECT_FALSE(RestoreSnapshot(arena.base(), 1 - taken.buffer, back.views(), &samples, &reason));
  EXPECT_FALSE(RestoreSnapshot(arena.base(), 7, back.views(), &samples, &reason));
}

// The agent does that to a snapshot whose save it gives up.
TEST(SnapshotTest, ASnapshotWhoseSaveWasGivenUpCanBeRestored) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken taken = Take(writer, 1, 1, /*persist=*/true);
  arena.buffer(taken.buffer).persist = 0;
  State back;
  uint64_t samples;
  std::string reason;
  EXPECT_TRUE(RestoreSnapshot(arena.base(), taken.buffer, back.views(), &samples, &reason))
      << reason;
}

TEST(SnapshotTest, RestoreFindsAFlippedBitAnywhere) {
  Arena arena;
  SnapshotWriter writer(arena.base());
  const Taken taken = Take(writer, 1, 1);
  const size_t table_bytes = 2 * sizeof(rank::TensorEntry);
  std::vector<char*> places;
  // Of the buffer's header: all but state, generation, persist and persisted, which go on changing.
  rank::BufferHeader& header = arena.buffer(taken.buffer);
  for (uint64_t* field : {&header.attempt, &header.step, &header.samples, &header.data_bytes,
                          &header.layout_hash, &header.facts_digest, &header.table_digest.low}) {
    places.push_back(reinterpret_cast<char*>(field));
  }
  places.push_back(reinterpret_cast<char*>(&header.tensors));
  for (size_t i = 0; i < table_bytes; ++i) places.push_back(arena.table(taken.buffer) + i);
  const auto* table = reinterpret_cast<const rank::TensorEntry*>(arena.table(taken.buffer));
  for (uint32_t t = 0; t < 2; ++t) {
    const size_t stride = t == 0 ? 997 : 1;
    for (size_t i = 0; i < table[t].data_bytes; i += stride) {
      places.push_back(arena.data(taken.buffer) + table[t].data_offset + i);
    }
  }
  for (char* place : places) {
    *place = static_cast<char>(*place ^ 0x10);
    State back;
    uint64_t samples;
    std::string reason;
    EXPECT_FALSE(RestoreSnapshot(arena.base(), taken.buffer, back.views(), &samples, &reason))
        << place - static_cast<char*>(arena.base());
    *place = static_cast<char>(*place ^ 0x10);
  }
  // Also what the rank does not ask for.
  arena.data(taken.buffer)[table[1].data_offset] ^= 1;
  State back;
  std::vector<TensorView> only = {back.views()[0]};
  uint64_t samples;
  std::string reason;
  EXPECT_FALSE(RestoreSnapshot(arena.base(), taken.buffer, only, &samples, &reason));
  EXPECT_THAT(reason, HasSubstr("'small'"));
}

TEST(SnapshotDeathTest, AProtectedSnapshotCannotBeWrittenByTheRank) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::signal(SIGSEGV, SIG_DFL);
        Arena arena;
        SnapshotWriter writer(arena.base());
        writer.ProtectSealed(true);
        for (uint64_t step = 1; step <= 4; ++step) {
          if (!Take(writer, 1, step).ok) std::_Exit(3);  // refilling makes a buffer writable again
        }
        *arena.data(0) = 1;
        std::_Exit(4);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

// Rank and agent race for the buffers. While the agent holds one in WRITING its bytes must not
// change, and the rank must never find itself without a newest snapshot.
TEST(SnapshotTest, RankAndAgentNeverOwnABufferTogether) {
  Arena arena(2);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> written{0};
  std::atomic<int> wrong{0};
  std::thread agent([&] {
    while (!done.load() || written.load() == 0) {
      for (uint32_t i = 0; i < 2; ++i) {
        if (!arena.Move(i, rank::kBufferSealed, rank::kBufferWriting)) continue;
        rank::BufferHeader& b = arena.buffer(i);
        const auto* table = reinterpret_cast<const rank::TensorEntry*>(arena.table(i));
        State expected(b.step);
        const bool good =
            b.tensors == 2 &&
            table[0].digest == DigestBytes(arena.data(i) + table[0].data_offset, kLarge * 4) &&
            table[0].digest == DigestBytes(expected.large.data(), kLarge * 4);
        if (!good) wrong.fetch_add(1);
        b.persisted.store(1);
        if (!arena.Move(i, rank::kBufferWriting, rank::kBufferSealed)) wrong.fetch_add(1);
        written.fetch_add(1);
      }
    }
  });
  SnapshotWriter writer(arena.base());
  uint64_t taken = 0, step = 0;
  while (taken < 100) {
    ++step;
    if (!writer.Ready(true)) {
      std::this_thread::yield();
      continue;
    }
    taken += Take(writer, 1, step, true).ok;  // may lose the race for a buffer
  }
  done.store(true);
  agent.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(written.load(), 0u);
}

}  // namespace
}  // namespace holdfast::ckpt
