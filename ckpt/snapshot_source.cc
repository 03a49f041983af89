// SPDX-License-Identifier: Apache-2.0
#include "ckpt/snapshot_source.h"

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ckpt/format/digest_text.h"
#include "ckpt/format/validate.h"

namespace holdfast::ckpt {
namespace {

using rank::ArenaHeader;
using rank::BufferHeader;
using rank::TensorEntry;

// Where the buffer's parts are, read once.
struct Place {
  const char* table = nullptr;
  uint64_t table_bytes = 0;
  const char* data = nullptr;
  uint64_t data_capacity = 0;
};

absl::StatusOr<Place> Locate(const SnapshotSource& source) {
  const char* reason = "";
  if (source.arena == nullptr || !rank::ValidateArena(source.arena, source.arena_bytes, &reason)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not an arena: ", source.arena == nullptr ? "no mapping" : reason));
  }
  const auto* header = static_cast<const ArenaHeader*>(source.arena);
  if (source.buffer >= header->buffers || source.buffer >= rank::kArenaBuffersMax) {
    return absl::InvalidArgumentError(absl::StrCat("the arena has no buffer ", source.buffer));
  }
  const uint64_t offset = header->buffer_offset, stride = header->buffer_stride;
  const uint64_t table_bytes = header->table_bytes, capacity = header->data_capacity;
  uint64_t at = 0, end = 0;
  if (__builtin_mul_overflow(stride, uint64_t{source.buffer}, &at) ||
      __builtin_add_overflow(at, offset, &at) || __builtin_add_overflow(at, table_bytes, &end) ||
      __builtin_add_overflow(end, capacity, &end) || end > source.arena_bytes) {
    return absl::InvalidArgumentError("the arena's header changed while it was read");
  }
  const char* base = static_cast<const char*>(source.arena) + at;
  return Place{base, table_bytes, base + table_bytes, capacity};
}

absl::Status CheckOwner(const CheckpointId& id, const SnapshotSource& source) {
  const auto* header = static_cast<const ArenaHeader*>(source.arena);
  const BufferHeader& b = header->buffer[source.buffer];
  if (b.state.load(std::memory_order_acquire) != rank::kBufferWriting) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffer ", source.buffer,
                     " of the arena is not in state WRITING; claim it before saving it"));
  }
  const CheckpointId held{JobId{header->job}, b.attempt, b.step};
  if (held != id) {
    return absl::FailedPreconditionError(absl::StrCat("buffer ", source.buffer, " of rank ",
                                                      header->rank, "'s arena holds ",
                                                      ToString(held), ", not ", ToString(id)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorEntry>> CopyTable(const BufferHeader& b, const Place& place,
                                                   uint32_t rank) {
  const uint32_t tensors = b.tensors;
  if (tensors > place.table_bytes / sizeof(TensorEntry)) {
    return absl::DataLossError(absl::StrCat("rank ", rank, "'s snapshot claims ", tensors,
                                            " tensors, more than its table holds"));
  }
  std::vector<TensorEntry> table(tensors);
  if (tensors > 0)
    std::memcpy(static_cast<void*>(table.data()), place.table, tensors * sizeof(TensorEntry));
  if (Xxh128(table.data(), table.size() * sizeof(TensorEntry)) != b.table_digest) {
    return absl::DataLossError(
        absl::StrCat("silent corruption: the tensor table of rank ", rank,
                     "'s snapshot does not match the digest taken when it was sealed"));
  }
  return table;
}

absl::StatusOr<TensorRecord> RecordOf(const TensorEntry& e, const Place& place, uint32_t rank) {
  TensorRecord t;
  if (std::memchr(e.name, 0, sizeof e.name) == nullptr || e.dims > rank::kDimsMax ||
      rank::DTypeBytes(e.dtype) == 0) {
    return absl::DataLossError(
        absl::StrCat("rank ", rank, "'s snapshot has a table entry that makes no sense"));
  }
  t.name = e.name;
  if (!IsValidTensorName(t.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank,
                     ": a tensor name of its snapshot holds characters other "
                     "than printable ASCII"));
  }
  if (e.data_offset > place.data_capacity || e.data_bytes > place.data_capacity - e.data_offset) {
    return absl::DataLossError(
        absl::StrCat("rank ", rank, ": tensor '", t.name, "' leaves the snapshot's data"));
  }
  t.dtype = e.dtype;
  t.global_shape.assign(e.global_shape, e.global_shape + e.dims);
  t.box.offset.assign(e.box_offset, e.box_offset + e.dims);
  t.box.size.assign(e.box_size, e.box_size + e.dims);
  t.replica = e.replica;
  t.bytes = e.data_bytes;
  t.digest = e.digest;
  return t;
}

}  // namespace

absl::StatusOr<SourceView> ReadSource(const CheckpointId& id, const SnapshotSource& source) {
  HF_ASSIGN_OR_RETURN(const Place place, Locate(source));
  HF_RETURN_IF_ERROR(CheckOwner(id, source));
  const auto* header = static_cast<const ArenaHeader*>(source.arena);
  const BufferHeader& b = header->buffer[source.buffer];
  SourceView view;
  view.manifest.id = id;
  view.manifest.rank = header->rank;
  view.manifest.world_size = header->world_size;
  view.manifest.samples = b.samples;
  view.region = {place.data, place.data_capacity};
  const rank::BufferFacts facts = rank::FactsOf(b);
  if (Xxh128(&facts, sizeof facts).low != b.facts_digest) {
    return absl::DataLossError(
        absl::StrCat("silent corruption: the header of rank ", header->rank,
                     "'s snapshot does not match the digest taken when it was sealed"));
  }
  HF_ASSIGN_OR_RETURN(const std::vector<TensorEntry> table, CopyTable(b, place, header->rank));
  for (const TensorEntry& e : table) {
    HF_ASSIGN_OR_RETURN(TensorRecord t, RecordOf(e, place, view.manifest.rank));
    view.manifest.tensors.push_back(std::move(t));
    view.data.push_back(place.data + e.data_offset);
  }
  return view;
}

}  // namespace holdfast::ckpt
