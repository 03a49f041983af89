// SPDX-License-Identifier: Apache-2.0
#include "ckpt/client/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace holdfast::ckpt {
namespace {

using rank::ArenaHeader;
using rank::BufferHeader;
using rank::TensorEntry;

constexpr uint64_t kSmallAlign = 64;
constexpr uint64_t kLargeTensorBytes =
    64 * 1024;  // from here on a tensor starts on a page of its own

bool Fail(std::string* reason, std::string text) {
  if (reason != nullptr) *reason = std::move(text);
  return false;
}

uint64_t AlignFor(uint64_t bytes) {
  return bytes >= kLargeTensorBytes ? rank::kArenaAlign : kSmallAlign;
}

uint64_t PlaceAt(uint64_t cursor, uint64_t bytes) {
  const uint64_t align = AlignFor(bytes);
  return (cursor + align - 1) / align * align;
}

char* BufferBase(const ArenaHeader* header, uint32_t buffer) {
  char* base = reinterpret_cast<char*>(const_cast<ArenaHeader*>(header));
  return base + header->buffer_offset + buffer * header->buffer_stride;
}

TensorEntry* Table(const ArenaHeader* header, uint32_t buffer) {
  return reinterpret_cast<TensorEntry*>(BufferBase(header, buffer));
}

char* DataArea(const ArenaHeader* header, uint32_t buffer) {
  return BufferBase(header, buffer) + header->table_bytes;
}

bool HoldsSnapshot(const BufferHeader& b) {
  const uint32_t state = b.state.load(std::memory_order_acquire);
  return state == rank::kBufferSealed || state == rank::kBufferWriting;
}

// The agent reads generations while the rank writes one at restore.
uint64_t Generation(const BufferHeader& b) {
  return __atomic_load_n(&b.generation, __ATOMIC_RELAXED);
}

uint64_t NewestGeneration(const ArenaHeader* header) {
  uint64_t newest = 0;
  for (uint32_t i = 0; i < header->buffers; ++i)
    newest = std::max(newest, Generation(header->buffer[i]));
  return newest;
}

// The sealed snapshot that was filled last (or was restored), or -1.
int NewestSnapshot(const ArenaHeader* header) {
  int newest = -1;
  for (uint32_t i = 0; i < header->buffers; ++i) {
    if (!HoldsSnapshot(header->buffer[i])) continue;
    if (newest < 0 || Generation(header->buffer[i]) > Generation(header->buffer[newest]))
      newest = static_cast<int>(i);
  }
  return newest;
}

uint64_t NewestAttempt(const ArenaHeader* header) {
  uint64_t newest = 0;
  for (uint32_t i = 0; i < header->buffers; ++i) {
    if (HoldsSnapshot(header->buffer[i])) newest = std::max(newest, header->buffer[i].attempt);
  }
  return newest;
}

bool WaitsToBeWritten(const BufferHeader& b, uint64_t attempt) {
  return b.attempt == attempt && b.persist != 0 && b.persisted.load(std::memory_order_acquire) == 0;
}

// Buffers that may be filled now, best first: free ones, then the oldest sealed ones.
std::vector<uint32_t> Candidates(const ArenaHeader* header, uint64_t attempt, bool agent_present) {
  std::vector<uint32_t> free_buffers, sealed;
  const int newest = NewestSnapshot(header);
  for (uint32_t i = 0; i < header->buffers; ++i) {
    const BufferHeader& b = header->buffer[i];
    const uint32_t state = b.state.load(std::memory_order_acquire);
    if (state == rank::kBufferFree) free_buffers.push_back(i);
    if (state != rank::kBufferSealed || static_cast<int>(i) == newest) continue;
    if (agent_present && WaitsToBeWritten(b, attempt)) continue;
    sealed.push_back(i);
  }
  std::sort(sealed.begin(), sealed.end(), [header](uint32_t a, uint32_t b) {
    return Generation(header->buffer[a]) < Generation(header->buffer[b]);
  });
  free_buffers.insert(free_buffers.end(), sealed.begin(), sealed.end());
  return free_buffers;
}

bool CheckBox(const TensorView& t, std::string* reason) {
  const size_t dims = t.global_shape.size();
  if (dims > rank::kDimsMax || t.box_offset.size() != dims || t.box_size.size() != dims) {
    return Fail(reason,
                "tensor '" + t.name +
                    "': shape, box offset and box size must have the same length, at most " +
                    std::to_string(rank::kDimsMax));
  }
  uint64_t bytes = rank::DTypeBytes(t.dtype);
  if (bytes == 0)
    return Fail(reason, "tensor '" + t.name + "': unknown element type " + std::to_string(t.dtype));
  for (size_t d = 0; d < dims; ++d) {
    if (t.box_offset[d] > t.global_shape[d] ||
        t.box_size[d] > t.global_shape[d] - t.box_offset[d]) {
      return Fail(reason, "tensor '" + t.name + "': its box leaves the tensor in dimension " +
                              std::to_string(d));
    }
    if (__builtin_mul_overflow(bytes, t.box_size[d], &bytes)) {
      return Fail(reason, "tensor '" + t.name + "': the size of its box overflows");
    }
  }
  if (bytes != t.bytes) {
    return Fail(reason, "tensor '" + t.name + "': its box has " + std::to_string(bytes) +
                            " bytes, its data " + std::to_string(t.bytes));
  }
  return true;
}

bool CheckTensor(const TensorView& t, std::string* reason) {
  if (t.name.empty() || t.name.size() >= rank::kTensorNameBytes ||
      t.name.find('\0') != std::string::npos) {
    return Fail(reason, "tensor name '" + t.name.substr(0, rank::kTensorNameBytes) +
                            "' must have 1 to " + std::to_string(rank::kTensorNameBytes - 1) +
                            " bytes");
  }
  if (!CheckBox(t, reason)) return false;
  if (t.data == nullptr && t.bytes > 0) return Fail(reason, "tensor '" + t.name + "' has no data");
  return true;
}

bool CheckFits(const ArenaHeader* header, const std::vector<TensorView>& tensors,
               std::string* reason) {
  const uint64_t slots =
      std::min<uint64_t>(header->table_bytes / sizeof(TensorEntry), rank::kTensorsMax);
  if (tensors.size() > slots) {
    return Fail(reason, std::to_string(tensors.size()) +
                            " tensors do not fit into the arena's table of " +
                            std::to_string(slots) + "; ask for a larger arena");
  }
  for (const TensorView& t : tensors) {
    if (!CheckTensor(t, reason)) return false;
  }
  const uint64_t need = SnapshotBytes(tensors);
  if (need > header->data_capacity) {
    return Fail(reason, "a snapshot of " + std::to_string(need) +
                            " bytes does not fit into the arena's buffers of " +
                            std::to_string(header->data_capacity) +
                            " bytes; ask for a larger arena");
  }
  return true;
}

TensorEntry EntryOf(const TensorView& t, uint64_t data_offset) {
  TensorEntry entry;
  std::memset(static_cast<void*>(&entry), 0, sizeof entry);
  std::memcpy(entry.name, t.name.data(), t.name.size());
  entry.dtype = t.dtype;
  entry.dims = static_cast<uint32_t>(t.global_shape.size());
  entry.replica = t.replica;
  std::copy(t.global_shape.begin(), t.global_shape.end(), entry.global_shape);
  std::copy(t.box_offset.begin(), t.box_offset.end(), entry.box_offset);
  std::copy(t.box_size.begin(), t.box_size.end(), entry.box_size);
  entry.data_offset = data_offset;
  entry.data_bytes = t.bytes;
  return entry;
}

// Of everything in the table but the digests, which are still zero.
uint64_t LayoutHash(const TensorEntry* table, size_t tensors) {
  return DigestBytes(table, tensors * sizeof(TensorEntry)).low;
}

bool StepIsNewer(const ArenaHeader* header, uint64_t attempt, uint64_t step, std::string* reason) {
  for (uint32_t i = 0; i < header->buffers; ++i) {
    const BufferHeader& b = header->buffer[i];
    if (HoldsSnapshot(b) && b.attempt == attempt && b.step >= step) {
      return Fail(reason, "a snapshot of step " + std::to_string(b.step) + " of attempt " +
                              std::to_string(attempt) + " is sealed already; step " +
                              std::to_string(step) + " is not newer");
    }
    if (HoldsSnapshot(b) && b.attempt > attempt) {
      return Fail(reason, "the arena holds a snapshot of attempt " + std::to_string(b.attempt) +
                              "; this rank was started for the older attempt " +
                              std::to_string(attempt));
    }
  }
  return true;
}

// The first candidate that is still available, now FILLING, or -1.
int Claim(ArenaHeader* header, uint64_t attempt, bool agent_present) {
  for (const uint32_t i : Candidates(header, attempt, agent_present)) {
    BufferHeader& b = header->buffer[i];
    uint32_t state = b.state.load(std::memory_order_acquire);
    if (state != rank::kBufferFree && state != rank::kBufferSealed)
      continue;  // the agent was faster
    if (b.state.compare_exchange_strong(state, rank::kBufferFilling, std::memory_order_acq_rel)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

using BoxKey = std::tuple<std::string, std::vector<uint64_t>, std::vector<uint64_t>>;

// A table entry is checked before it is used: the arena may have been spoilt by a stray write.
bool CheckEntry(const ArenaHeader* header, const TensorEntry& e, std::string* reason) {
  if (std::memchr(e.name, 0, sizeof e.name) == nullptr || e.dims > rank::kDimsMax) {
    return Fail(reason, "the snapshot's tensor table holds nonsense");
  }
  if (e.data_offset > header->data_capacity ||
      e.data_bytes > header->data_capacity - e.data_offset) {
    return Fail(reason, "tensor '" + std::string(e.name) + "' lies outside the snapshot's data");
  }
  return true;
}

uint64_t FactsDigest(const BufferHeader& b) {
  const rank::BufferFacts facts = rank::FactsOf(b);
  return DigestBytes(&facts, sizeof facts).low;
}

bool CheckTable(const ArenaHeader* header, uint32_t buffer, std::string* reason) {
  const BufferHeader& b = header->buffer[buffer];
  if (FactsDigest(b) != b.facts_digest) {
    return Fail(reason, "the snapshot's header does not match its digest");
  }
  if (b.tensors > header->table_bytes / sizeof(TensorEntry)) {
    return Fail(reason, "the snapshot claims " + std::to_string(b.tensors) +
                            " tensors, more than its table holds");
  }
  const TensorEntry* table = Table(header, buffer);
  if (DigestBytes(table, b.tensors * sizeof(TensorEntry)) != b.table_digest) {
    return Fail(reason, "the snapshot's tensor table does not match its digest");
  }
  for (uint32_t i = 0; i < b.tensors; ++i) {
    if (!CheckEntry(header, table[i], reason)) return false;
  }
  return true;
}

bool CheckSealed(const ArenaHeader* header, uint32_t buffer, std::string* reason) {
  if (buffer < header->buffers && HoldsSnapshot(header->buffer[buffer])) return true;
  return Fail(reason,
              "buffer " + std::to_string(buffer) + " of the arena holds no sealed snapshot");
}

bool Matches(const TensorEntry& e, const TensorView& t) {
  return e.dtype == t.dtype && e.data_bytes == t.bytes &&
         std::vector<uint64_t>(e.global_shape, e.global_shape + e.dims) == t.global_shape;
}

bool CopyBack(const ArenaHeader* header, uint32_t buffer, const std::vector<TensorView>& tensors,
              std::string* reason) {
  const TensorEntry* table = Table(header, buffer);
  std::map<BoxKey, const TensorEntry*> entries;
  for (uint32_t i = 0; i < header->buffer[buffer].tensors; ++i) {
    const TensorEntry& e = table[i];
    entries[{e.name, {e.box_offset, e.box_offset + e.dims}, {e.box_size, e.box_size + e.dims}}] =
        &e;
  }
  std::vector<const TensorEntry*> copied;
  for (const TensorView& t : tensors) {
    const auto found = entries.find({t.name, t.box_offset, t.box_size});
    if (found == entries.end() || !Matches(*found->second, t)) {
      return Fail(reason,
                  "tensor '" + t.name + "' with this box, shape and type is not in the snapshot");
    }
    const TensorEntry& e = *found->second;
    if (CopyAndDigest(t.data, DataArea(header, buffer) + e.data_offset, e.data_bytes) != e.digest) {
      return Fail(reason,
                  "tensor '" + t.name +
                      "' in the snapshot does not match the digest taken when it was copied");
    }
    copied.push_back(&e);
  }
  std::sort(copied.begin(), copied.end());
  for (const auto& [key, entry] : entries) {
    if (std::binary_search(copied.begin(), copied.end(), entry)) continue;
    if (DigestBytes(DataArea(header, buffer) + entry->data_offset, entry->data_bytes) !=
        entry->digest) {
      return Fail(reason,
                  "tensor '" + std::get<0>(key) + "' in the snapshot does not match its digest");
    }
  }
  return true;
}

// Frees what the agent is not writing. What it is writing it will put back to SEALED; that snapshot
// is then an old one.
void FreeBuffersExcept(ArenaHeader* header, int kept) {
  for (uint32_t i = 0; i < header->buffers; ++i) {
    if (static_cast<int>(i) == kept) continue;
    for (uint32_t from : {rank::kBufferSealed, rank::kBufferFilling}) {
      header->buffer[i].state.compare_exchange_strong(from, rank::kBufferFree,
                                                      std::memory_order_acq_rel);
    }
  }
}

}  // namespace

uint64_t SnapshotBytes(const std::vector<TensorView>& tensors) {
  uint64_t cursor = 0;
  for (const TensorView& t : tensors) cursor = PlaceAt(cursor, t.bytes) + t.bytes;
  return (cursor + kSmallAlign - 1) / kSmallAlign * kSmallAlign;
}

SnapshotWriter::SnapshotWriter(void* arena) : header_(static_cast<ArenaHeader*>(arena)) {
  for (uint32_t i = 0; i < header_->buffers; ++i) {
    uint32_t torn = rank::kBufferFilling;
    header_->buffer[i].state.compare_exchange_strong(torn, rank::kBufferFree,
                                                     std::memory_order_acq_rel);
  }
}

bool SnapshotWriter::Ready(bool agent_present, uint64_t attempt) const {
  if (attempt == 0) attempt = NewestAttempt(header_);
  return filling_ < 0 && !Candidates(header_, attempt, agent_present).empty();
}

void SnapshotWriter::SetWritable(uint32_t buffer, bool writable) const {
  if (!protect_sealed_) return;
  // Best effort: without it a stray write is still found, by the digests.
  (void)::mprotect(BufferBase(header_, buffer), header_->table_bytes + header_->data_capacity,
                   writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

bool SnapshotWriter::Begin(const std::vector<TensorView>& tensors, uint64_t attempt, uint64_t step,
                           uint64_t samples, bool persist, bool agent_present, uint32_t* buffer,
                           std::string* reason) {
  busy_ = false;
  if (filling_ >= 0) return Fail(reason, "a snapshot is being filled already");
  if (!CheckFits(header_, tensors, reason) || !StepIsNewer(header_, attempt, step, reason))
    return false;
  if (attempt == attempt_ && step <= step_) {
    return Fail(reason, "step " + std::to_string(step) + " is not newer than step " +
                            std::to_string(step_) + ", whose snapshot was the last one");
  }
  const int claimed = Claim(header_, attempt, agent_present);
  if (claimed < 0) {
    busy_ = true;
    return Fail(reason,
                "no buffer of the arena is ready: one is being written or waits to be written");
  }
  const uint32_t index = static_cast<uint32_t>(claimed);
  SetWritable(index, true);
  attempt_ = attempt;
  BufferHeader& b = header_->buffer[index];
  b.tensors = static_cast<uint32_t>(tensors.size());
  b.attempt = attempt;
  b.step = step;
  b.samples = samples;
  __atomic_store_n(&b.generation, NewestGeneration(header_) + 1, __ATOMIC_RELAXED);
  b.persist = persist ? 1 : 0;
  b.persisted.store(0, std::memory_order_relaxed);
  uint64_t cursor = 0;
  TensorEntry* table = Table(header_, index);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t at = PlaceAt(cursor, tensors[i].bytes);
    table[i] = EntryOf(tensors[i], at);
    cursor = at + tensors[i].bytes;
  }
  b.data_bytes = cursor;
  b.layout_hash = LayoutHash(table, tensors.size());
  copied_.assign(tensors.size(), false);
  filling_ = claimed;
  *buffer = index;
  return true;
}

void SnapshotWriter::CopyTensor(size_t index, const TensorView& tensor) {
  if (filling_ < 0 || index >= copied_.size() || copied_[index])
    return;  // Seal reports what was not copied
  const uint32_t buffer = static_cast<uint32_t>(filling_);
  TensorEntry& entry = Table(header_, buffer)[index];
  if (tensor.bytes != entry.data_bytes || tensor.name != entry.name) return;
  entry.digest =
      CopyAndDigest(DataArea(header_, buffer) + entry.data_offset, tensor.data, tensor.bytes);
  copied_[index] = true;
}

bool SnapshotWriter::Seal(std::string* reason) {
  if (filling_ < 0) return Fail(reason, "no snapshot is being filled");
  const uint32_t buffer = static_cast<uint32_t>(filling_);
  BufferHeader& b = header_->buffer[buffer];
  const TensorEntry* table = Table(header_, buffer);
  filling_ = -1;
  for (size_t i = 0; i < copied_.size(); ++i) {
    if (copied_[i]) continue;
    const std::string name = table[i].name;
    b.state.store(rank::kBufferFree, std::memory_order_release);
    return Fail(reason, "tensor '" + name +
                            "' was not copied (or not with the size it was announced with)");
  }
  b.table_digest = DigestBytes(table, b.tensors * sizeof(TensorEntry));
  b.facts_digest = FactsDigest(b);
  step_ = b.step;
  SetWritable(buffer, false);
  b.state.store(rank::kBufferSealed, std::memory_order_release);
  return true;
}

bool SnapshotWriter::Take(const std::vector<TensorView>& tensors, uint64_t attempt, uint64_t step,
                          uint64_t samples, bool persist, bool agent_present, uint32_t* buffer,
                          std::string* reason) {
  if (!Begin(tensors, attempt, step, samples, persist, agent_present, buffer, reason)) return false;
  for (size_t i = 0; i < tensors.size(); ++i) CopyTensor(i, tensors[i]);
  return Seal(reason);
}

bool RestoreSnapshot(void* arena, uint32_t buffer, const std::vector<TensorView>& tensors,
                     uint64_t* samples, std::string* reason) {
  auto* header = static_cast<ArenaHeader*>(arena);
  if (!CheckSealed(header, buffer, reason)) return false;
  for (const TensorView& t : tensors) {
    if (!CheckTensor(t, reason)) return false;
  }
  if (!CheckTable(header, buffer, reason) || !CopyBack(header, buffer, tensors, reason))
    return false;
  BufferHeader& b = header->buffer[buffer];
  *samples = b.samples;
  FreeBuffersExcept(header, static_cast<int>(buffer));
  // The newest from now on, even beside a later one (off the line) that the agent is still writing.
  __atomic_store_n(&b.generation, NewestGeneration(header) + 1, __ATOMIC_RELAXED);
  return true;
}

bool ListSnapshot(void* arena, uint32_t buffer, std::vector<TensorView>* tensors,
                  std::string* reason) {
  auto* header = static_cast<ArenaHeader*>(arena);
  if (!CheckSealed(header, buffer, reason) || !CheckTable(header, buffer, reason)) return false;
  tensors->clear();
  for (uint32_t i = 0; i < header->buffer[buffer].tensors; ++i) {
    const TensorEntry& e = Table(header, buffer)[i];
    tensors->push_back({e.name,
                        e.dtype,
                        {e.global_shape, e.global_shape + e.dims},
                        {e.box_offset, e.box_offset + e.dims},
                        {e.box_size, e.box_size + e.dims},
                        e.replica,
                        DataArea(header, buffer) + e.data_offset,
                        e.data_bytes});
  }
  return true;
}

void DiscardSnapshots(void* arena) { FreeBuffersExcept(static_cast<ArenaHeader*>(arena), -1); }

}  // namespace holdfast::ckpt
