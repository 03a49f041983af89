// SPDX-License-Identifier: Apache-2.0
// The arena memfd of one rank, as the keeper holds it: made, size-sealed, its pages allocated a
// piece at a time between events. The rank may scribble over the mapping at any time, so every
// number used here is the keeper's own copy.
#ifndef HOLDFAST_AGENT_KEEPER_ARENA_MEMORY_H_
#define HOLDFAST_AGENT_KEEPER_ARENA_MEMORY_H_

#include <cstdint>
#include <string>

#include "base/rank/arena.h"

namespace holdfast::keeper {

inline constexpr uint64_t kArenaChunkBytes =
    32 << 20;  // pages allocated between two looks at events: about 10 ms

struct ArenaRequest {
  uint64_t data_bytes = 0;
  uint32_t buffers = 0;
  uint32_t tensors = 0;
};

class ArenaMemory {
 public:
  ArenaMemory() = default;
  ~ArenaMemory() { Drop(); }
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  bool exists() const { return fd_ >= 0; }
  bool ready() const { return fd_ >= 0 && allocated_ == total_; }
  int fd() const { return fd_; }
  uint64_t total_bytes() const { return total_; }
  uint32_t buffers() const { return buffers_; }

  // Whether the arena that exists has this layout.
  bool Fits(const ArenaRequest& request, uint32_t world_size) const;
  // Makes a new one in place of the old. Returns 0 or an errno, with a text for the rank.
  int Make(const ArenaRequest& request, uint64_t job, uint32_t rank, uint32_t world_size,
           std::string* text);
  // Allocates the next chunk. Returns 0 or an errno (the arena is gone then).
  int AllocateChunk();
  void Drop();

  // No process that could fill a buffer is left: what was being filled holds nothing.
  void FreeHalfFilled();
  // The buffer that holds this sealed snapshot, or -1.
  int Find(uint64_t attempt, uint64_t step) const;
  // The newest sealed snapshot; false when there is none.
  bool Newest(uint64_t* attempt, uint64_t* step) const;

 private:
  int fd_ = -1;
  rank::ArenaHeader* header_ = nullptr;  // the first page, shared with the rank
  uint64_t total_ = 0, allocated_ = 0;
  uint64_t table_bytes_ = 0, data_capacity_ = 0;
  uint32_t buffers_ = 0, world_size_ = 0;
};

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_ARENA_MEMORY_H_
