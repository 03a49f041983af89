// SPDX-License-Identifier: Apache-2.0
// A memfd of the rank interface, mapped by the agent. The rank on the other side is not trusted:
// the memfd must be sealed against shrinking (else reading it could raise SIGBUS), and what is in
// it is validated before it is used.
#ifndef HOLDFAST_AGENT_MAPPING_H_
#define HOLDFAST_AGENT_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/core/step_log.h"
#include "base/rank/arena.h"
#include "base/rank/recorder.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

// Not copyable; unmaps at the end. The bytes are shared with rank and keeper.
class Mapping {
 public:
  // Takes the descriptor. INVALID_ARGUMENT when it is not a sealed memfd of at most `bytes_max`.
  static absl::StatusOr<std::unique_ptr<Mapping>> Map(UniqueFd fd, size_t bytes_max);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  size_t bytes_;
};

// A validated recorder. One thread.
class Recorder final : public StepSource {
 public:
  static absl::StatusOr<std::unique_ptr<Recorder>> Map(UniqueFd fd);
  bool ReadProgress(rank::Progress* out) const override { return reader_.ReadProgress(out); }
  bool ReadStep(uint64_t step, rank::StepRecord* out) const override {
    return reader_.ReadStep(step, out);
  }
  const rank::RecorderReader& reader() const { return reader_; }
  rank::ControlLine* control() const { return reader_.control(); }

 private:
  explicit Recorder(std::unique_ptr<Mapping> mapping)
      : mapping_(std::move(mapping)), reader_(mapping_->data(), mapping_->bytes()) {}
  std::unique_ptr<Mapping> mapping_;
  rank::RecorderReader reader_;
};

// What one buffer of an arena holds.
struct SealedSnapshot {
  uint32_t buffer = 0;
  uint64_t attempt = 0;
  uint64_t step = 0;
  uint64_t layout_hash = 0;
  bool persist = false;
  bool persisted = false;
};

// A validated arena. The saver's thread and the loop may share it: every change is a
// compare-and-swap on a buffer's state.
class Arena {
 public:
  static absl::StatusOr<std::shared_ptr<Arena>> Map(UniqueFd fd);
  const void* data() const { return mapping_->data(); }
  size_t bytes() const { return mapping_->bytes(); }

  // What is sealed (buffers that are being written to the store are still whole).
  std::vector<SealedSnapshot> Sealed() const;
  // SEALED -> WRITING if the buffer holds exactly this snapshot and still wants to be written.
  bool Claim(uint32_t buffer, uint64_t attempt, uint64_t step);
  // WRITING -> SEALED. `saved`: it is durable. Otherwise it no longer asks to be written: a rank
  // must not wait for ever for a disk.
  void Release(uint32_t buffer, bool saved);
  // WRITING left behind by an agent that died -> SEALED. Only while no saver runs on this arena.
  void ResetStuck();
  // A save that an earlier agent finished.
  void MarkPersisted(uint64_t attempt, uint64_t step);

 private:
  explicit Arena(std::unique_ptr<Mapping> mapping);
  rank::BufferHeader& Header(uint32_t buffer) const;
  std::unique_ptr<Mapping> mapping_;
  uint32_t buffers_;  // as validated: the rank can write to its header
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_MAPPING_H_
