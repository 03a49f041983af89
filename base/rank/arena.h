// SPDX-License-Identifier: Apache-2.0
// The arena: one memfd for each rank of a job on a node, held by the keeper across attempts, so
// that a snapshot outlives the process that took it. A fixed number of equal buffers; each holds
// one snapshot: a tensor table, then the bytes. docs/formats/rank.md. Layout only; ckpt/client
// writes and reads snapshots.
//
// A buffer's life: FREE -> FILLING (rank) -> SEALED (rank) -> WRITING (agent) -> SEALED; SEALED ->
// FILLING again when it may be reused. Transitions are compare-and-swap on `state`, so rank and
// agent never both think they own a buffer.
//
// Why two buffers are enough: a rank refills the buffer of snapshot S only after the last
// collective of step S+2, before which every rank has sealed S+1 (it seals a step before it takes
// part in the last collective of the next). So the newest complete snapshot is never the one
// overwritten. This holds only if all ranks take or skip a snapshot together: they agree on it in
// the reduction that ends a step.
#ifndef HOLDFAST_BASE_RANK_ARENA_H_
#define HOLDFAST_BASE_RANK_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace holdfast::rank {

inline constexpr uint64_t kArenaMagic = 0x314e455241465548ull;  // "HUFAREN1"
inline constexpr uint32_t kArenaVersion = 1;
inline constexpr uint32_t kArenaBuffersMax = 4;
inline constexpr uint32_t kDimsMax = 8;
inline constexpr uint32_t kTensorNameBytes = 160;
inline constexpr uint32_t kTensorsMax = 65536;
inline constexpr size_t kArenaAlign = 4096;

enum BufferState : uint32_t {
  kBufferFree = 0,
  kBufferFilling = 1,
  kBufferSealed = 2,
  kBufferWriting = 3
};

// Element types, by name in manifests: "f32" "f64" "f16" "bf16" "i8" "u8" "i16" "i32" "i64" "bool"
// "f8_e4m3" "f8_e5m2".
enum DType : uint32_t {
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI8 = 5,
  kU8 = 6,
  kI16 = 7,
  kI32 = 8,
  kI64 = 9,
  kBool = 10,
  kF8E4M3 = 11,
  kF8E5M2 = 12,
};
uint32_t DTypeBytes(uint32_t dtype);    // 0 for an unknown one
const char* DTypeName(uint32_t dtype);  // nullptr for an unknown one

struct Digest128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest128&) const = default;
};

// One box of one global tensor. `replica` 0 is the copy that is written to the store; others
// declare that they hold the same bytes and are only compared.
struct TensorEntry {
  char name[kTensorNameBytes];  // NUL-terminated, global name
  uint32_t dtype;
  uint32_t dims;
  uint32_t replica;
  uint32_t reserved0;
  uint64_t global_shape[kDimsMax];
  uint64_t box_offset[kDimsMax];
  uint64_t box_size[kDimsMax];
  uint64_t data_offset;  // from the start of the buffer's data area; a multiple of 64
  uint64_t data_bytes;
  Digest128 digest;  // XXH3-128 of the bytes
  uint64_t reserved1[4];
};
static_assert(sizeof(TensorEntry) == 160 + 16 + 3 * 64 + 16 + 16 + 32);

struct alignas(64) BufferHeader {
  std::atomic<uint32_t> state;
  uint32_t tensors;
  uint64_t attempt;  // that filled it
  uint64_t step;
  uint64_t samples;                 // consumed samples: the loader's cursor
  uint64_t generation;              // grows with every fill of this arena
  uint64_t data_bytes;              // used bytes of the data area
  uint32_t persist;                 // 1: the rank wants this snapshot written to the store
  std::atomic<uint32_t> persisted;  // 1: the agent has it durable and PREPARED
  Digest128 table_digest;           // XXH3-128 of the table (tensors * sizeof(TensorEntry) bytes)
  uint64_t layout_hash;             // of names, shapes and boxes; equal on every step of one layout
  uint64_t facts_digest;            // low half of XXH3-128 of BufferFacts
  uint64_t reserved[5];
};
static_assert(sizeof(BufferHeader) == 128);

// What a sealed buffer's header says and nobody changes any more, as its digest covers it. (The
// agent takes `persist` back when it gives up a save.)
struct BufferFacts {
  uint64_t tensors, attempt, step, samples, data_bytes, layout_hash;
  Digest128 table_digest;
};
static_assert(sizeof(BufferFacts) == 64);
BufferFacts FactsOf(const BufferHeader& header);

struct ArenaHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t buffers;
  uint64_t total_bytes;
  uint64_t buffer_offset;  // of buffer 0, from the start of the mapping; page-aligned
  uint64_t buffer_stride;  // bytes from one buffer to the next; page-aligned
  uint64_t table_bytes;    // of the tensor table at the start of each buffer; page-aligned
  uint64_t data_capacity;  // bytes behind the table
  uint64_t job;
  uint32_t rank;
  uint32_t world_size;
  uint64_t reserved[7];
  BufferHeader buffer[kArenaBuffersMax];
};
static_assert(sizeof(ArenaHeader) % 64 == 0 && sizeof(ArenaHeader) <= kArenaAlign);

// Size of the whole arena, and the layout in `out` (magic, sizes, offsets; states FREE). 0 when the
// numbers are impossible (buffers outside 1..kArenaBuffersMax, tensors over kTensorsMax, an
// overflow). `tensors` bounds the table.
uint64_t ArenaLayout(uint64_t data_capacity, uint32_t tensors, uint32_t buffers, ArenaHeader* out);

// Checks a mapping of `bytes` bytes: magic, version, every offset inside. False with a reason
// otherwise.
bool ValidateArena(const void* base, size_t bytes, const char** reason);

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_ARENA_H_
