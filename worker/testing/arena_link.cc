// SPDX-License-Identifier: Apache-2.0
#include "worker/testing/arena_link.h"

#include <cstdlib>
#include <cstring>

namespace holdfast::worker {
namespace {

constexpr uint32_t kBuffers = 2;

rank::ArenaHeader* Header(const ArenaMemory& memory) {
  return reinterpret_cast<rank::ArenaHeader*>(memory.bytes.get());
}

}  // namespace

absl::Status ArenaLink::WantArena(uint64_t data_bytes, uint32_t tensors) {
  if (!memory_->bytes) {
    rank::ArenaHeader layout{};
    memory_->size = rank::ArenaLayout(data_bytes, tensors, kBuffers, &layout);
    if (memory_->size == 0) return absl::InvalidArgumentError("impossible arena");
    auto* bytes = static_cast<uint8_t*>(std::aligned_alloc(rank::kArenaAlign, memory_->size));
    std::memset(bytes, 0, memory_->size);
    memory_->bytes = {bytes, [](uint8_t* p) { std::free(p); }};
    layout.job = kTestJob;
    layout.rank = memory_->rank;
    layout.world_size = memory_->world_size;
    std::memcpy(bytes, &layout, sizeof(layout));
  }
  const char* reason = nullptr;
  if (!rank::ValidateArena(memory_->bytes.get(), memory_->size, &reason))
    return absl::InternalError(reason);
  writer_ = std::make_unique<ckpt::SnapshotWriter>(memory_->bytes.get());
  return absl::OkStatus();
}

bool ArenaLink::SnapshotReady() const {
  return step_ >= busy_until_step && writer_->Ready(/*agent_present=*/false);
}

absl::Status ArenaLink::TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                                     uint64_t samples, bool persist, uint64_t* stall_ns) {
  uint32_t buffer = 0;
  std::string reason;
  if (!writer_->Take(tensors, attempt_, step, samples, persist, /*agent_present=*/false, &buffer,
                     &reason)) {
    return absl::InternalError(reason);
  }
  memory_->restore_buffer = static_cast<int>(buffer);
  sealed.push_back(step);
  if (persist) persisted.push_back(step);
  *stall_ns = 1;
  return absl::OkStatus();
}

uint64_t ArenaLink::RestoreStep() const {
  return memory_ == nullptr || memory_->restore_buffer < 0
             ? 0
             : Header(*memory_)->buffer[memory_->restore_buffer].step;
}

absl::Status ArenaLink::Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) {
  std::string reason;
  if (!ckpt::RestoreSnapshot(memory_->bytes.get(), static_cast<uint32_t>(memory_->restore_buffer),
                             tensors, samples, &reason)) {
    return absl::DataLossError(reason);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::worker
