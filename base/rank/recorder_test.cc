// SPDX-License-Identifier: Apache-2.0
#include "base/rank/recorder.h"

#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace holdfast::rank {
namespace {

// Page-aligned zeroed memory of a recorder's size.
class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest() : storage_(RecorderBytes() + 4096) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    base_ = storage_.data() + (4096 - address % 4096) % 4096;
    InitRecorder(base_, 42, 3, 1, 4);
  }
  RecorderHeader* header() { return reinterpret_cast<RecorderHeader*>(base_); }

  std::vector<char> storage_;
  char* base_;
};

StepRecord Record(uint64_t step) {
  StepRecord r;
  r.step = step;
  r.samples = step * 2;
  r.loss = static_cast<double>(step) * 3;
  r.grad_norm = static_cast<double>(step) * 4;
  r.lr = static_cast<double>(step) * 5;
  r.tokens_per_s = static_cast<double>(step) * 6;
  r.done_ns = step * 7;
  r.snapshot_stall_ns = step * 8;
  return r;
}

TEST_F(RecorderTest, SizeIsWholePagesAndTheHeaderSaysWhatItIs) {
  EXPECT_EQ(RecorderBytes() % 4096, 0u);
  const char* reason = "none";
  ASSERT_TRUE(RecorderReader::Validate(base_, RecorderBytes(), &reason)) << reason;
  EXPECT_EQ(header()->job, 42u);
  EXPECT_EQ(header()->control.attempt_current.load(), 3u);
}

// The offsets that docs/formats/rank.md gives.
TEST_F(RecorderTest, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(sizeof(RecorderHeader), 320u);
  EXPECT_EQ(offsetof(RecorderHeader, step_slots), 48u);
  EXPECT_EQ(offsetof(RecorderHeader, control), 128u);
  EXPECT_EQ(offsetof(RecorderHeader, progress), 192u);
  EXPECT_EQ(offsetof(RecorderHeader, pid), 256u);
  EXPECT_EQ(header()->step_ring_offset, 384u);
  EXPECT_EQ(std::string(base_, 8), "HUFRECR1");
}

TEST_F(RecorderTest, ProgressAndStepsAreReadBack) {
  RecorderWriter writer(base_);
  RecorderReader reader(base_, RecorderBytes());
  writer.EnterPhase(kPhaseForward, 5, 2, 1234);
  writer.FinishStep(Record(5));
  writer.FinishStep(Record(6));
  Progress p;
  ASSERT_TRUE(reader.ReadProgress(&p));
  EXPECT_EQ(p.step, 5u);
  EXPECT_EQ(p.steps_done, 6u);
  EXPECT_EQ(p.phase, kPhaseForward);
  EXPECT_EQ(p.micro_batch, 2u);
  EXPECT_EQ(p.phase_enter_ns, 1234u);
  EXPECT_EQ(p.first_step, 5u);
  EXPECT_EQ(p.first_step_done_ns, 35u);
  EXPECT_EQ(p.tick, 3u);
  StepRecord r;
  ASSERT_TRUE(reader.ReadStep(6, &r));
  EXPECT_EQ(r.samples, 12u);
  EXPECT_EQ(r.loss, 18.0);
  EXPECT_EQ(r.snapshot_stall_ns, 48u);
  EXPECT_FALSE(reader.ReadStep(7, &r));
}

TEST_F(RecorderTest, OldStepsAreOverwrittenNotMistaken) {
  RecorderWriter writer(base_);
  RecorderReader reader(base_, RecorderBytes());
  writer.FinishStep(Record(9));
  writer.FinishStep(Record(9 + kStepSlots));
  StepRecord r;
  EXPECT_FALSE(reader.ReadStep(9, &r));
  EXPECT_TRUE(reader.ReadStep(9 + kStepSlots, &r));
}

TEST_F(RecorderTest, ATornWriteIsReported) {
  RecorderWriter writer(base_);
  RecorderReader reader(base_, RecorderBytes());
  writer.FinishStep(Record(1));
  header()->progress.seq.fetch_add(1);
  Progress p;
  EXPECT_FALSE(reader.ReadProgress(&p));
  auto* slot = reinterpret_cast<StepSlot*>(base_ + header()->step_ring_offset) + 1;
  slot->seq.fetch_add(1);
  StepRecord r;
  EXPECT_FALSE(reader.ReadStep(1, &r));
}

TEST_F(RecorderTest, LastWordsAreBounded) {
  RecorderWriter writer(base_);
  RecorderReader reader(base_, RecorderBytes());
  const std::string words(kMessageBytes + 100, 'w');
  writer.SetMessage(words.data(), words.size());
  std::vector<char> out(kMessageBytes * 2);
  EXPECT_EQ(reader.ReadMessage(out.data(), out.size()), kMessageBytes);
  header()->message_used.store(0xffffffff);
  EXPECT_EQ(reader.ReadMessage(out.data(), out.size()), kMessageBytes);
  EXPECT_EQ(reader.ReadMessage(out.data(), 10), 10u);
}

TEST_F(RecorderTest, ControlWordsReachTheRank) {
  RecorderWriter writer(base_);
  RecorderReader reader(base_, RecorderBytes());
  EXPECT_TRUE(writer.AttemptIsCurrent());
  EXPECT_EQ(writer.ShouldStop(), kStopNone);
  reader.control()->attempt_current.store(4);
  reader.control()->should_stop.store(kStopDrain);
  reader.control()->save_request.store(2);
  reader.control()->agent_present.store(1);
  EXPECT_FALSE(writer.AttemptIsCurrent());
  EXPECT_EQ(writer.ShouldStop(), kStopDrain);
  EXPECT_EQ(writer.SaveRequests(), 2u);
  EXPECT_TRUE(writer.AgentPresent());
}

TEST_F(RecorderTest, ReadersNeverSeeAMixOfTwoWrites) {
  RecorderReader reader(base_, RecorderBytes());
  std::atomic<bool> stop{false};
  std::thread writing([&] {
    RecorderWriter writer(base_);
    // One slot again and again: steps that are equal modulo the ring.
    for (uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i)
      writer.FinishStep(Record(7 + (i % 2) * kStepSlots));
  });
  int seen = 0;
  for (int i = 0; i < 2'000'000 && seen < 20'000; ++i) {
    StepRecord r;
    const uint64_t step = 7 + (i % 2) * kStepSlots;
    if (!reader.ReadStep(step, &r)) continue;
    ++seen;
    const StepRecord expected = Record(step);
    ASSERT_EQ(r.samples, expected.samples);
    ASSERT_EQ(r.loss, expected.loss);
    ASSERT_EQ(r.snapshot_stall_ns, expected.snapshot_stall_ns);
  }
  stop = true;
  writing.join();
  EXPECT_GT(seen, 0);
}

TEST_F(RecorderTest, EveryWrongSizeOfTheMappingIsRefused) {
  const char* reason = nullptr;
  for (size_t bytes : {size_t{0}, size_t{1}, sizeof(RecorderHeader) - 1, sizeof(RecorderHeader),
                       RecorderBytes() - 1}) {
    EXPECT_FALSE(RecorderReader::Validate(base_, bytes, &reason)) << bytes;
  }
}

// Every bit of every field that the reader depends on: either refused, or reading stays inside the
// mapping (ASan watches).
TEST_F(RecorderTest, FlippedHeaderBitsAreRefusedOrHarmless) {
  struct Field {
    size_t offset, bytes;
    bool must_refuse;
  };
  const Field fields[] = {
      {offsetof(RecorderHeader, magic), 8, true},
      {offsetof(RecorderHeader, version), 4, true},
      {offsetof(RecorderHeader, header_bytes), 4, false},
      {offsetof(RecorderHeader, total_bytes), 8, true},
      {offsetof(RecorderHeader, step_slots), 4, false},
      {offsetof(RecorderHeader, message_bytes), 4, false},
      {offsetof(RecorderHeader, step_ring_offset), 8, false},
      {offsetof(RecorderHeader, message_offset), 8, false},
      {offsetof(RecorderHeader, op_ring_offset), 8, true},
      {offsetof(RecorderHeader, op_ring_bytes), 8, true},
  };
  const std::string pristine(base_, RecorderBytes());
  for (const Field& f : fields) {
    for (size_t bit = 0; bit < f.bytes * 8; ++bit) {
      memcpy(base_, pristine.data(), pristine.size());
      base_[f.offset + bit / 8] = static_cast<char>(base_[f.offset + bit / 8] ^ (1 << bit % 8));
      // In memory of exactly the recorder's size, so that a read beyond it is caught.
      std::vector<uint64_t> exact(RecorderBytes() / 8);
      memcpy(exact.data(), base_, RecorderBytes());
      const char* reason = nullptr;
      const bool valid = RecorderReader::Validate(exact.data(), RecorderBytes(), &reason);
      if (f.must_refuse) {
        EXPECT_FALSE(valid) << "offset " << f.offset << " bit " << bit;
      }
      if (!valid) {
        EXPECT_NE(reason, nullptr);
      }
      RecorderReader reader(exact.data(), RecorderBytes());
      StepRecord r;
      char words[kMessageBytes];
      for (uint64_t step : {uint64_t{0}, uint64_t{kStepSlots - 1}, ~uint64_t{0}})
        reader.ReadStep(step, &r);
      reader.ReadMessage(words, sizeof(words));
    }
  }
}

TEST_F(RecorderTest, AHeaderChangedAfterValidationReadsNothing) {
  const char* reason = nullptr;
  ASSERT_TRUE(RecorderReader::Validate(base_, RecorderBytes(), &reason));
  RecorderWriter(base_).FinishStep(Record(1));
  header()->step_ring_offset = ~0ull;
  RecorderReader reader(base_, RecorderBytes());
  StepRecord r;
  EXPECT_FALSE(reader.ReadStep(1, &r));
}

}  // namespace
}  // namespace holdfast::rank
