// SPDX-License-Identifier: Apache-2.0
#include "base/rank/arena.h"

namespace holdfast::rank {
namespace {

struct TypeInfo {
  const char* name;
  uint32_t bytes;
};

// Indexed by DType.
constexpr TypeInfo kTypes[] = {
    {nullptr, 0}, {"f32", 4}, {"f64", 8}, {"f16", 2},  {"bf16", 2},    {"i8", 1},      {"u8", 1},
    {"i16", 2},   {"i32", 4}, {"i64", 8}, {"bool", 1}, {"f8_e4m3", 1}, {"f8_e5m2", 1},
};
constexpr uint32_t kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

constexpr uint64_t kArenaBytesMax = 1ull << 46;  // 64 TiB: past any machine, and far from overflow

constexpr uint64_t RoundUp(uint64_t value) {
  return (value + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
}

struct Geometry {
  uint64_t total_bytes, buffer_offset, buffer_stride, table_bytes, data_capacity;
  uint32_t buffers;
};

bool Compute(uint64_t data_capacity, uint32_t tensors, uint32_t buffers, Geometry* out) {
  if (buffers == 0 || buffers > kArenaBuffersMax || tensors == 0 || tensors > kTensorsMax)
    return false;
  if (data_capacity > kArenaBytesMax) return false;
  out->buffers = buffers;
  out->buffer_offset = kArenaAlign;
  out->table_bytes = RoundUp(uint64_t{tensors} * sizeof(TensorEntry));
  out->data_capacity = RoundUp(data_capacity);
  out->buffer_stride = out->table_bytes + out->data_capacity;
  out->total_bytes = out->buffer_offset + out->buffer_stride * buffers;
  return out->total_bytes <= kArenaBytesMax;
}

template <typename T>
T Load(const T* from) {
  return std::atomic_ref<T>(*const_cast<T*>(from)).load(std::memory_order_acquire);
}

const char* Problem(const ArenaHeader* h, size_t bytes) {
  if (bytes < kArenaAlign) return "arena: smaller than its header page";
  if (Load(&h->magic) != kArenaMagic) return "arena: wrong magic";
  if (Load(&h->version) != kArenaVersion) return "arena: version is not 1";
  const Geometry g = {Load(&h->total_bytes), Load(&h->buffer_offset), Load(&h->buffer_stride),
                      Load(&h->table_bytes), Load(&h->data_capacity), Load(&h->buffers)};
  if (g.buffers == 0 || g.buffers > kArenaBuffersMax) return "arena: buffers out of range";
  if (g.total_bytes != bytes || bytes > kArenaBytesMax)
    return "arena: total_bytes is not the size of the mapping";
  if (g.buffer_offset < kArenaAlign || g.buffer_offset % kArenaAlign != 0 ||
      g.buffer_offset > bytes) {
    return "arena: buffer_offset out of range or not page-aligned";
  }
  if (g.buffer_stride % kArenaAlign != 0 ||
      g.buffer_stride > (bytes - g.buffer_offset) / g.buffers) {
    return "arena: the buffers leave the mapping";
  }
  if (g.table_bytes == 0 || g.table_bytes % kArenaAlign != 0 || g.table_bytes > g.buffer_stride) {
    return "arena: table_bytes out of range or not page-aligned";
  }
  if (g.table_bytes > RoundUp(uint64_t{kTensorsMax} * sizeof(TensorEntry)))
    return "arena: table_bytes over the limit";
  if (g.data_capacity > g.buffer_stride - g.table_bytes)
    return "arena: data_capacity leaves its buffer";
  return nullptr;
}

}  // namespace

BufferFacts FactsOf(const BufferHeader& header) {
  return {header.tensors,    header.attempt,     header.step,        header.samples,
          header.data_bytes, header.layout_hash, header.table_digest};
}

uint32_t DTypeBytes(uint32_t dtype) { return dtype < kTypeCount ? kTypes[dtype].bytes : 0; }

const char* DTypeName(uint32_t dtype) { return dtype < kTypeCount ? kTypes[dtype].name : nullptr; }

uint64_t ArenaLayout(uint64_t data_capacity, uint32_t tensors, uint32_t buffers, ArenaHeader* out) {
  Geometry g;
  if (!Compute(data_capacity, tensors, buffers, &g)) return 0;
  if (out == nullptr) return g.total_bytes;
  out->version = kArenaVersion;
  out->buffers = g.buffers;
  out->total_bytes = g.total_bytes;
  out->buffer_offset = g.buffer_offset;
  out->buffer_stride = g.buffer_stride;
  out->table_bytes = g.table_bytes;
  out->data_capacity = g.data_capacity;
  for (BufferHeader& buffer : out->buffer)
    buffer.state.store(kBufferFree, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(out->magic).store(kArenaMagic, std::memory_order_release);
  return g.total_bytes;
}

bool ValidateArena(const void* base, size_t bytes, const char** reason) {
  const char* problem = Problem(static_cast<const ArenaHeader*>(base), bytes);
  if (problem != nullptr && reason != nullptr) *reason = problem;
  return problem == nullptr;
}

}  // namespace holdfast::rank
