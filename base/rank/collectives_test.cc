// SPDX-License-Identifier: Apache-2.0
#include "base/rank/collectives.h"

#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace holdfast::rank {
namespace {

constexpr size_t kLayout1Bytes = 33 * 4096;  // of a recorder as layout 1 had it

// Page-aligned zeroed memory with a recorder in it.
class Memory {
 public:
  explicit Memory(size_t bytes = RecorderBytes()) : bytes_(bytes), storage_(bytes + 4096) {
    base_ = storage_.data() + (4096 - reinterpret_cast<uintptr_t>(storage_.data()) % 4096) % 4096;
  }
  char* base() { return base_; }
  size_t bytes() const { return bytes_; }
  RecorderHeader* header() { return reinterpret_cast<RecorderHeader*>(base_); }

 private:
  size_t bytes_;
  std::vector<char> storage_;
  char* base_;
};

class CollectivesTest : public ::testing::Test {
 protected:
  CollectivesTest() { InitRecorder(memory_.base(), 42, 3, 1, 4); }
  CollectiveWriter Writer() { return CollectiveWriter(memory_.base(), memory_.bytes()); }
  CollectiveReader Reader() { return CollectiveReader(memory_.base(), memory_.bytes()); }
  CollectivesHeader* block() {
    return reinterpret_cast<CollectivesHeader*>(memory_.base() +
                                                memory_.header()->collectives_offset);
  }

  Memory memory_;
};

CollectiveBegin Operation(uint32_t group, uint32_t kind, uint64_t bytes = 0) {
  CollectiveBegin operation;
  operation.group = group;
  operation.kind = kind;
  operation.dtype = 1;
  operation.bytes = bytes;
  return operation;
}

const uint32_t kRanks[] = {1, 3};

// The offsets that docs/formats/rank.md gives.
TEST_F(CollectivesTest, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(offsetof(RecorderHeader, layout), 88u);
  EXPECT_EQ(offsetof(RecorderHeader, collectives_offset), 96u);
  EXPECT_EQ(offsetof(RecorderHeader, collectives_bytes), 104u);
  EXPECT_EQ(memory_.header()->layout, 2u);
  EXPECT_EQ(memory_.header()->collectives_offset, kLayout1Bytes);
  EXPECT_EQ(memory_.header()->collectives_bytes, 128u + 128 * 320 + 4096 * 64);
  EXPECT_EQ(offsetof(CollectivesHeader, tickets), 64u);
  EXPECT_EQ(offsetof(GroupSlot, name), 24u);
  EXPECT_EQ(offsetof(CollectiveSlot, group), 56u);
  EXPECT_EQ(offsetof(CollectiveSlot, peer), 60u);
}

TEST_F(CollectivesTest, GroupsAndOperationsAreReadBack) {
  CollectiveWriter writer = Writer();
  RecorderWriter(memory_.base()).EnterPhase(kPhaseForward, 7, 0, 1);
  EXPECT_EQ(writer.AddGroup("default", nullptr, 4), 1u);
  EXPECT_EQ(writer.AddGroup("tensor", kRanks, 2), 2u);
  CollectiveBegin begin = Operation(2, kBroadcast, 4096);
  begin.peer = 1;
  const uint64_t done = writer.Begin(begin, 100);
  writer.End(done, kFinished, 140);
  writer.Begin(Operation(2, kAllReduce, 8), 150);
  const CollectiveReader reader = Reader();
  const std::vector<GroupRecord> groups = reader.Groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_STREQ(groups[0].name, "default");
  EXPECT_EQ(groups[0].size, 4u);
  EXPECT_EQ(groups[0].ranks_digest, 0u);
  EXPECT_TRUE(groups[0].ranks.empty());
  EXPECT_EQ(groups[1].ranks, std::vector<uint32_t>({1, 3}));
  EXPECT_EQ(groups[1].ranks_digest, RanksDigest(kRanks, 2));
  EXPECT_EQ(groups[1].collectives.begun, 2u);
  EXPECT_EQ(groups[1].collectives.ended, 1u);
  EXPECT_EQ(groups[1].collectives.failed, 0u);
  const std::vector<CollectiveRecord> operations = reader.Operations();
  ASSERT_EQ(operations.size(), 2u);
  const CollectiveRecord& r = operations[0];
  EXPECT_EQ(r.ticket, 1u);
  EXPECT_EQ(r.number, 1u);
  EXPECT_EQ(r.group, 2u);
  EXPECT_EQ(r.kind, kBroadcast);
  EXPECT_EQ(r.dtype, 1u);
  EXPECT_EQ(r.peer, 1);
  EXPECT_EQ(r.bytes, 4096u);
  EXPECT_EQ(r.step, 7u);
  EXPECT_EQ(r.begin_ns, 100u);
  EXPECT_EQ(r.end_ns, 140u);
  EXPECT_EQ(r.outcome, kFinished);
  EXPECT_EQ(operations[1].peer, -1);
  const std::vector<CollectiveRecord> running = reader.Running();
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0].number, 2u);
  EXPECT_EQ(running[0].outcome, kRunning);
  EXPECT_EQ(reader.Begun(), 2u);
}

TEST_F(CollectivesTest, TheStepIsTheOneBehindTheNewestFinishedOne) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", nullptr, 2);
  writer.Begin(Operation(1, kBarrier), 1);
  StepRecord step;
  step.step = 9;
  RecorderWriter(memory_.base()).FinishStep(step);
  writer.Begin(Operation(1, kBarrier), 2);
  const auto operations = Reader().Operations();
  ASSERT_EQ(operations.size(), 2u);
  EXPECT_EQ(operations[0].step, 1u);
  EXPECT_EQ(operations[1].step, 10u);
}

TEST_F(CollectivesTest, SendsAndReceivesAreNumberedApartAndFailuresCounted) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", nullptr, 2);
  const uint64_t reduce = writer.Begin(Operation(1, kAllReduce), 1);
  const uint64_t send = writer.Begin(Operation(1, kSend), 2);
  writer.Begin(Operation(1, kRecv), 3);
  writer.End(send, kFailed, 4);
  writer.End(reduce, kEndUnseen, 5);
  const GroupRecord group = Reader().Groups().at(0);
  EXPECT_EQ(group.collectives.begun, 1u);
  EXPECT_EQ(group.collectives.ended, 1u);
  EXPECT_EQ(group.collectives.failed, 0u);
  EXPECT_EQ(group.point_to_point.begun, 2u);
  EXPECT_EQ(group.point_to_point.ended, 1u);
  EXPECT_EQ(group.point_to_point.failed, 1u);
  const auto operations = Reader().Operations();
  ASSERT_EQ(operations.size(), 3u);
  EXPECT_EQ(operations[0].outcome, kEndUnseen);
  EXPECT_EQ(operations[1].number, 1u);
  EXPECT_EQ(operations[1].outcome, kFailed);
  EXPECT_EQ(operations[2].number, 2u);
}

// What is left of an operation that the ring has turned over are the counts, and they are right.
TEST_F(CollectivesTest, CountsOutliveTheRing) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("slow", nullptr, 2);
  writer.AddGroup("busy", nullptr, 2);
  const uint64_t stuck = writer.Begin(Operation(1, kAllReduce), 1);
  for (uint64_t i = 0; i < kCollectiveSlots; ++i)
    writer.End(writer.Begin(Operation(2, kAllGather), 10 + i), kFinished, 11 + i);
  CollectiveReader reader = Reader();
  EXPECT_TRUE(reader.Running().empty());
  EXPECT_EQ(reader.Operations().size(), kCollectiveSlots);
  EXPECT_EQ(reader.Groups()[0].collectives.begun, 1u);
  EXPECT_EQ(reader.Groups()[0].collectives.ended, 0u);
  const CollectiveRecord before = reader.Operations().back();
  writer.End(stuck, kFailed, 1u << 20);
  EXPECT_EQ(reader.Groups()[0].collectives.ended, 1u);
  EXPECT_EQ(reader.Groups()[0].collectives.failed, 1u);
  // The slot is another operation's by now and stays as it was.
  const CollectiveRecord after = reader.Operations().back();
  EXPECT_EQ(after.ticket, uint64_t{kCollectiveSlots} + 1);
  EXPECT_EQ(after.end_ns, before.end_ns);
  EXPECT_EQ(after.outcome, kFinished);
}

TEST_F(CollectivesTest, AFullTableRefusesGroupsAndTheirOperations) {
  CollectiveWriter writer = Writer();
  for (uint32_t i = 1; i <= kCollectiveGroupsMax; ++i)
    ASSERT_EQ(writer.AddGroup("g", kRanks, 2), i);
  EXPECT_EQ(writer.AddGroup("one too many", kRanks, 2), 0u);
  EXPECT_EQ(block()->groups_refused.load(), 1u);
  EXPECT_EQ(writer.Begin(Operation(0, kAllReduce), 1), 0u);
  EXPECT_EQ(writer.Begin(Operation(kCollectiveGroupsMax + 1, kAllReduce), 1), 0u);
  writer.End(0, kFinished, 2);
  writer.End(~uint64_t{0}, kFinished, 2);
  EXPECT_EQ(Reader().Groups().size(), kCollectiveGroupsMax);
  EXPECT_TRUE(Reader().Operations().empty());
}

TEST_F(CollectivesTest, LongNamesAndLargeGroupsAreCut) {
  CollectiveWriter writer = Writer();
  std::vector<uint32_t> ranks(1000);
  for (uint32_t i = 0; i < 1000; ++i) ranks[i] = i * 8;
  writer.AddGroup(std::string(200, 'n').c_str(), ranks.data(), 1000);
  const GroupRecord group = Reader().Groups().at(0);
  EXPECT_EQ(std::string(group.name), std::string(kGroupNameBytes - 1, 'n'));
  EXPECT_EQ(group.size, 1000u);
  EXPECT_EQ(group.ranks, std::vector<uint32_t>(ranks.begin(), ranks.begin() + kGroupRanksListed));
  ranks[999] += 1;
  EXPECT_NE(group.ranks_digest, RanksDigest(ranks.data(), 1000));
}

// FNV-1a 64 of the bytes 00 00 00 00 01 00 00 00.
TEST_F(CollectivesTest, TheDigestIsTheDocumentedOne) {
  const uint32_t ranks[] = {0, 1};
  EXPECT_EQ(RanksDigest(ranks, 2), 0x08cd4c29d1e47d34ull);
}

TEST_F(CollectivesTest, ASlotThatIsBeingWrittenIsLeftOut) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", nullptr, 2);
  const uint64_t first = writer.Begin(Operation(1, kAllReduce), 1);
  writer.Begin(Operation(1, kAllReduce), 2);
  auto* ring = reinterpret_cast<CollectiveSlot*>(reinterpret_cast<char*>(block()) + 128 +
                                                 sizeof(GroupSlot) * kCollectiveGroupsMax);
  ring[1].seq.fetch_add(1);
  ASSERT_EQ(Reader().Operations().size(), 1u);
  EXPECT_EQ(Reader().Operations()[0].ticket, 2u);
  // Nor do writers wait for it: what cannot be noted is counted, in the group too.
  writer.End(first, kFinished, 3);
  EXPECT_EQ(block()->dropped.load(), 1u);
  EXPECT_EQ(Reader().Groups()[0].collectives.ended, 1u);
}

// A recorder as keepers with layout 1 make it.
TEST_F(CollectivesTest, ARecorderOfLayout1HasNoneAndEverythingElse) {
  Memory old(kLayout1Bytes);
  memcpy(old.base(), memory_.base(), kLayout1Bytes);
  memset(&old.header()->layout, 0, 32);
  old.header()->total_bytes = kLayout1Bytes;
  const char* reason = "none";
  ASSERT_TRUE(RecorderReader::Validate(old.base(), old.bytes(), &reason)) << reason;
  CollectiveWriter writer(old.base(), old.bytes());
  EXPECT_FALSE(writer.valid());
  EXPECT_EQ(writer.AddGroup("g", kRanks, 2), 0u);
  EXPECT_EQ(writer.Begin(Operation(1, kAllReduce), 1), 0u);
  writer.End(uint64_t{1} << 48 | 1, kFinished, 2);
  CollectiveReader reader(old.base(), old.bytes());
  EXPECT_FALSE(reader.valid());
  EXPECT_TRUE(reader.Groups().empty());
  EXPECT_TRUE(reader.Operations().empty());
  EXPECT_EQ(reader.Begun(), 0u);
  StepRecord step;
  step.step = 5;
  RecorderWriter(old.base()).FinishStep(step);
  EXPECT_TRUE(RecorderReader(old.base(), old.bytes()).ReadStep(5, &step));
}

// The client library in an image may know layout 1 only. This is all that it checks; a recorder
// that fails here would cost every such job its start.
TEST_F(CollectivesTest, WhatReadersOfLayout1CheckStillHolds) {
  const RecorderHeader* h = memory_.header();
  EXPECT_EQ(std::string(memory_.base(), 8), "HUFRECR1");
  EXPECT_EQ(h->version, 1u);
  EXPECT_EQ(h->header_bytes, 320u);
  EXPECT_EQ(h->total_bytes, memory_.bytes());
  EXPECT_EQ(h->step_slots, 1024u);
  EXPECT_EQ(h->step_ring_offset, 384u);
  EXPECT_EQ(h->message_bytes, 2048u);
  EXPECT_EQ(h->message_offset, 384u + 1024 * 128);
  EXPECT_EQ(h->op_ring_offset, 0u);
  EXPECT_EQ(h->op_ring_bytes, 0u);
}

// A newer layout that says that readers of version 1 can read it.
TEST_F(CollectivesTest, ANewerLayoutIsReadAsFarAsItIsKnown) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", nullptr, 2);
  memory_.header()->layout = 3;
  const char* reason = "none";
  ASSERT_TRUE(RecorderReader::Validate(memory_.base(), memory_.bytes(), &reason)) << reason;
  EXPECT_EQ(Reader().Groups().size(), 1u);
}

// Every bit of every number that the geometry comes from: refused, or reading and writing stay
// inside the mapping (ASan watches).
TEST_F(CollectivesTest, FlippedGeometryBitsAreRefusedOrHarmless) {
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", kRanks, 2);
  writer.Begin(Operation(1, kAllReduce), 1);
  const size_t at = memory_.header()->collectives_offset;
  const size_t fields[] = {offsetof(RecorderHeader, layout),
                           offsetof(RecorderHeader, collectives_offset),
                           offsetof(RecorderHeader, collectives_bytes),
                           at + offsetof(CollectivesHeader, slots),
                           at + offsetof(CollectivesHeader, groups),
                           at + sizeof(CollectivesHeader) + offsetof(GroupSlot, size)};
  auto exact =
      std::make_unique<uint64_t[]>(memory_.bytes() / 8);  // so that a read beyond is caught
  auto* copy = reinterpret_cast<char*>(exact.get());
  for (const size_t field : fields) {
    for (size_t bit = 0; bit < 64; ++bit) {
      memcpy(copy, memory_.base(), memory_.bytes());
      copy[field + bit / 8] = static_cast<char>(copy[field + bit / 8] ^ (1 << bit % 8));
      const CollectiveReader reader(copy, memory_.bytes());
      EXPECT_LE(reader.Groups().size(), 255u);
      reader.Running();
      CollectiveWriter other(copy, memory_.bytes());
      other.End(other.Begin(Operation(other.AddGroup("h", kRanks, 2), kSend), 1), kFinished, 2);
    }
  }
}

TEST_F(CollectivesTest, CollectivesThatLeaveTheMappingAreRefused) {
  const char* reason = nullptr;
  memory_.header()->collectives_bytes += 4096;
  EXPECT_FALSE(RecorderReader::Validate(memory_.base(), memory_.bytes(), &reason));
  EXPECT_FALSE(Reader().valid());
}

// All fields of an operation follow from begin_ns: a mix of two shows.
TEST_F(CollectivesTest, ThreadsWriteAtOnceAndReadersSeeWholeRecords) {
  constexpr int kThreads = 3;
  constexpr uint64_t kEach = 1'000'000;
  std::atomic<int> left{kThreads};
  std::vector<std::thread> threads;
  block()->slots = 2;  // so that they meet
  Writer().AddGroup("g", nullptr, 2);
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CollectiveWriter writer = Writer();
      for (uint64_t i = 1; i <= kEach; ++i) {
        const uint64_t now = i * kThreads + t;
        CollectiveBegin begin =
            Operation(1, static_cast<uint32_t>(now % kCollectiveKinds), now * 3);
        begin.peer = static_cast<int32_t>(now % 1000);
        writer.End(writer.Begin(begin, now), kFinished, now * 2);
      }
      left.fetch_sub(1);
    });
  }
  const CollectiveReader reader = Reader();
  size_t seen = 0, mixed = 0;
  for (bool more = true; more;) {
    more = left.load() != 0;  // so the last look comes behind the last write
    for (const CollectiveRecord& r : reader.Operations()) {
      ++seen;
      const bool whole = r.bytes == r.begin_ns * 3 && r.kind == r.begin_ns % kCollectiveKinds &&
                         static_cast<uint64_t>(r.peer) == r.begin_ns % 1000 &&
                         (r.end_ns == 0 || r.end_ns == r.begin_ns * 2);
      if (!whole) ++mixed;
    }
    const GroupRecord group = reader.Groups().at(0);
    if (group.collectives.ended > group.collectives.begun) ++mixed;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(seen, 0u);
  EXPECT_EQ(mixed, 0u) << "of " << seen;
  const GroupRecord group = reader.Groups().at(0);
  EXPECT_EQ(group.collectives.begun + group.point_to_point.begun, kThreads * kEach);
  EXPECT_EQ(group.collectives.ended + group.point_to_point.ended, kThreads * kEach);
  // A writer that the kernel stops inside a slot, for as long as the others need for a whole ring,
  // costs whoever comes to that slot its record.
  if (block()->dropped.load() == 0) {
    EXPECT_TRUE(reader.Running().empty());
  }
}

uint64_t MonoNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// For people: --gtest_also_run_disabled_tests --gtest_filter=*Cost. The target is 100 ns with both
// times.
TEST_F(CollectivesTest, DISABLED_Cost) {
  constexpr uint64_t kOperations = 1'000'000;
  CollectiveWriter writer = Writer();
  writer.AddGroup("g", nullptr, 2);
  for (int run = 0; run < 5; ++run) {
    const uint64_t begin_ns = MonoNs();
    for (uint64_t i = 0; i < kOperations; ++i)
      writer.End(writer.Begin(Operation(1, kAllReduce, i), MonoNs()), kFinished, MonoNs());
    printf("%.1f ns an operation\n",
           static_cast<double>(MonoNs() - begin_ns) / static_cast<double>(kOperations));
  }
}

}  // namespace
}  // namespace holdfast::rank
