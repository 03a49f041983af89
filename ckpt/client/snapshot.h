// SPDX-License-Identifier: Apache-2.0
// Snapshots in the arena, from the rank's side: copy tensors in, digest them while they are copied,
// seal; and back again. No third-party library is linked (XXH3 is compiled in from the header-only
// xxhash.h).
//
// Threads: one thread at a time. The writer does not own the mapping. docs/formats/rank.md
// describes the bytes; base/rank/arena.h says why two buffers are enough and what the ranks must
// agree on first.
#ifndef HOLDFAST_CKPT_CLIENT_SNAPSHOT_H_
#define HOLDFAST_CKPT_CLIENT_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank/arena.h"

namespace holdfast::ckpt {

// One box of one global tensor as the rank holds it: contiguous bytes at `data`.
struct TensorView {
  std::string name;
  uint32_t dtype = rank::kF32;
  std::vector<uint64_t> global_shape;
  std::vector<uint64_t> box_offset;  // same length as global_shape
  std::vector<uint64_t> box_size;
  uint32_t replica = 0;  // 0: this rank writes it to the store
  void* data = nullptr;
  uint64_t bytes = 0;  // product of box_size times the element size
};

// Digest of a run of bytes, and of bytes while they are copied (one pass through the cache).
rank::Digest128 DigestBytes(const void* data, size_t bytes);
rank::Digest128 CopyAndDigest(void* to, const void* from, size_t bytes);

// Bytes of data area needed for `tensors`. Each starts at a multiple of 64; one of 64 KiB or more
// at a multiple of 4096, so that the agent can write it with O_DIRECT straight from the arena.
uint64_t SnapshotBytes(const std::vector<TensorView>& tensors);

class SnapshotWriter {
 public:
  // `arena` is a validated mapping of the rank's own arena (rank::ValidateArena). A buffer in
  // FILLING was left by a process of this rank that died while it filled it: it becomes FREE.
  explicit SnapshotWriter(void* arena);

  // Makes the buffers of sealed snapshots read-only in this mapping, so that a stray write faults
  // instead of spoiling the snapshot. The mapping must be page-aligned, and be unmapped (not handed
  // to free) at the end. Off by default.
  void ProtectSealed(bool on) { protect_sealed_ = on; }

  // Whether a snapshot of `attempt` could be taken now: a buffer is FREE, or SEALED, not the newest
  // sealed one, not being written, and (while an agent is present) not waiting to be written. Only
  // what is of the same attempt waits: an older attempt's save was committed or aborted before this
  // one started. 0 stands for the newest attempt in the arena. Ranks reduce this flag (minimum) and
  // all take or all skip.
  bool Ready(bool agent_present, uint64_t attempt = 0) const;

  // Fills and seals one buffer. False with a reason (layout does not fit, no buffer ready, sizes
  // that do not match). With `agent_present` false a buffer that still waits to be written may be
  // superseded. `step` must be newer than every sealed one of this attempt.
  bool Take(const std::vector<TensorView>& tensors, uint64_t attempt, uint64_t step,
            uint64_t samples, bool persist, bool agent_present, uint32_t* buffer,
            std::string* reason);

  // The same in three parts, for copies that overlap other work: Begin picks the buffer and writes
  // the table; CopyTensor may be called in any order, each index once; Seal checks that all were
  // copied.
  bool Begin(const std::vector<TensorView>& tensors, uint64_t attempt, uint64_t step,
             uint64_t samples, bool persist, bool agent_present, uint32_t* buffer,
             std::string* reason);
  // The newest Begin failed for no other reason than that no buffer was ready. After Ready has said
  // yes that passes: an agent that came back in between is writing the buffer, or has looked at it.
  bool busy() const { return busy_; }
  void CopyTensor(size_t index, const TensorView& tensor);
  bool Seal(std::string* reason);

 private:
  void SetWritable(uint32_t buffer, bool writable) const;

  rank::ArenaHeader* header_;
  int filling_ = -1;
  uint64_t attempt_ = 0;  // of the newest Begin
  uint64_t step_ = 0;     // of the newest Seal
  bool protect_sealed_ = false;
  bool busy_ = false;
  std::vector<bool> copied_;
};

// Copies a sealed snapshot back into `tensors` (matched by name, box and dtype), verifying every
// byte against the digests. False with a reason naming the tensor (then `tensors` hold a mixture
// and must not be used). Also frees every other buffer of the arena: what they hold is off the
// line.
bool RestoreSnapshot(void* arena, uint32_t buffer, const std::vector<TensorView>& tensors,
                     uint64_t* samples, std::string* reason);

// The tensors of a sealed snapshot, as its table (verified) says; `data` points into the arena, at
// bytes that are not verified.
bool ListSnapshot(void* arena, uint32_t buffer, std::vector<TensorView>* tensors,
                  std::string* reason);

// Frees every buffer that the agent is not writing: for an attempt that starts from a checkpoint or
// from scratch.
void DiscardSnapshots(void* arena);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CLIENT_SNAPSHOT_H_
