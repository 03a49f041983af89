// SPDX-License-Identifier: Apache-2.0
// For tests: a rank's link over a plain arena in memory, as if keeper and agent were there. One
// thread at a time.
#ifndef HOLDFAST_WORKER_TESTING_ARENA_LINK_H_
#define HOLDFAST_WORKER_TESTING_ARENA_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank_link.h"

namespace holdfast::worker {

// The memory of one rank's arena; outlives the attempts that use it.
inline constexpr uint64_t kTestJob = 1;
struct ArenaMemory {
  std::unique_ptr<uint8_t[], void (*)(uint8_t*)> bytes{nullptr, nullptr};
  uint64_t size = 0;
  int restore_buffer = -1;  // what the next attempt starts from; -1: nothing
  uint32_t rank = 0, world_size = 1;
};

class ArenaLink final : public RankLink {
 public:
  ArenaLink(ArenaMemory* memory, uint64_t attempt) : memory_(memory), attempt_(attempt) {}

  // What a test sets and sees.
  uint64_t stop_at_step = 0;     // ShouldStop from this step on; 0: never
  uint64_t stale_at_step = 0;    // AttemptIsCurrent is false from this step on; 0: never
  uint64_t save_at_step = 0;     // one save request from this step on
  uint64_t busy_until_step = 0;  // SnapshotReady is false before this step
  std::vector<rank::StepRecord> records;
  std::vector<uint64_t> sealed, persisted;  // steps
  int skipped = 0;
  std::string last_words;

  bool AttemptIsCurrent() const override { return stale_at_step == 0 || step_ < stale_at_step; }
  rank::StopReason ShouldStop() const override {
    return stop_at_step != 0 && step_ >= stop_at_step ? rank::kStopDrain : rank::kStopNone;
  }
  uint64_t SaveRequests() const override {
    return save_at_step != 0 && step_ >= save_at_step ? 1 : 0;
  }
  void EnterPhase(rank::Phase, uint64_t step, uint32_t) override { step_ = step; }
  void FinishStep(const rank::StepRecord& record) override {
    if (!records.empty() && records.back().step == record.step)
      records.pop_back();  // written again
    records.push_back(record);
    step_ = record.step + 1;  // the step whose start is checked next
  }
  void SetLastWords(std::string_view text) override { last_words = text; }
  bool HasArena() const override { return memory_ != nullptr; }
  absl::Status WantArena(uint64_t data_bytes, uint32_t tensors) override;
  bool SnapshotReady() const override;
  absl::Status TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                            uint64_t samples, bool persist, uint64_t* stall_ns) override;
  void CountSkippedSnapshot() override { ++skipped; }
  uint64_t RestoreStep() const override;
  absl::Status Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) override;

 private:
  ArenaMemory* memory_;
  uint64_t attempt_;
  uint64_t step_ = 0;
  std::unique_ptr<ckpt::SnapshotWriter> writer_;
};

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_TESTING_ARENA_LINK_H_
