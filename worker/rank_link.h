// SPDX-License-Identifier: Apache-2.0
// What the trainer needs from Holdfast, as a seam: client::Session in a job, a plain arena in
// tests, nothing when run alone. One thread.
#ifndef HOLDFAST_WORKER_RANK_LINK_H_
#define HOLDFAST_WORKER_RANK_LINK_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/rank/recorder.h"
#include "ckpt/client/snapshot.h"

namespace holdfast::client {
class Session;
}

namespace holdfast::worker {

class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual bool AttemptIsCurrent() const = 0;
  virtual rank::StopReason ShouldStop() const = 0;
  virtual uint64_t SaveRequests() const = 0;  // grows with each request
  virtual void EnterPhase(rank::Phase phase, uint64_t step, uint32_t micro_batch) = 0;
  virtual void FinishStep(const rank::StepRecord& record) = 0;
  virtual void SetLastWords(std::string_view text) = 0;

  // False when there is nowhere to put snapshots (run alone): then nothing below is called.
  virtual bool HasArena() const = 0;
  virtual absl::Status WantArena(uint64_t data_bytes, uint32_t tensors) = 0;
  virtual bool SnapshotReady() const = 0;
  virtual absl::Status TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                                    uint64_t samples, bool persist, uint64_t* stall_ns) = 0;
  virtual void CountSkippedSnapshot() = 0;
  virtual uint64_t RestoreStep() const = 0;  // of the snapshot this attempt starts from; 0: none
  virtual absl::Status Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) = 0;
};

// Over a session, which must outlive the link.
class SessionLink final : public RankLink {
 public:
  explicit SessionLink(client::Session* session) : session_(session) {}
  bool AttemptIsCurrent() const override;
  rank::StopReason ShouldStop() const override;
  uint64_t SaveRequests() const override;
  void EnterPhase(rank::Phase phase, uint64_t step, uint32_t micro_batch) override;
  void FinishStep(const rank::StepRecord& record) override;
  void SetLastWords(std::string_view text) override;
  bool HasArena() const override;
  absl::Status WantArena(uint64_t data_bytes, uint32_t tensors) override;
  bool SnapshotReady() const override;
  absl::Status TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                            uint64_t samples, bool persist, uint64_t* stall_ns) override;
  void CountSkippedSnapshot() override;
  uint64_t RestoreStep() const override;
  absl::Status Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) override;

 private:
  client::Session* session_;
};

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_RANK_LINK_H_
