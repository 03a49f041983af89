// SPDX-License-Identifier: Apache-2.0
// Memory order as in recorder.cc: data is stored with release and loaded with acquire, so a reader
// that sees any datum of a write in progress also sees that write's odd sequence number.
#include "base/rank/collectives.h"

#include <string.h>

#include <algorithm>

namespace holdfast::rank {
namespace {

constexpr int kSeqlockTries = 1000;  // then the other writer is taken for stopped inside a write
constexpr uint32_t kSlotsMax = 1u << 20;  // readers accept other builds' sizes up to these
constexpr uint32_t kGroupsMax = UINT8_MAX;

// A handle says which counters to raise even when the slot has long been another operation's.
constexpr int kGroupShift = 48, kPointToPointShift = 63;
constexpr uint64_t kTicketMask = (uint64_t{1} << kGroupShift) - 1;

template <typename T>
void StoreRelease(T* to, T value) {
  std::atomic_ref<T>(*to).store(value, std::memory_order_release);
}
template <typename T>
T LoadAcquire(T* from) {
  return std::atomic_ref<T>(*from).load(std::memory_order_acquire);
}

struct Block {
  CollectivesHeader* header = nullptr;
  GroupSlot* groups = nullptr;
  CollectiveSlot* ring = nullptr;
  uint32_t slots = 0, groups_max = 0;
};

// Where the block is, checked against `bytes` of mapping; all null when there is none that fits.
Block Find(void* recorder, size_t bytes) {
  uint64_t offset = 0, length = 0;
  if (!CollectivesIn(recorder, bytes, &offset, &length)) return {};
  if (length < sizeof(CollectivesHeader)) return {};
  Block block;
  char* at = static_cast<char*>(recorder) + offset;
  block.header = reinterpret_cast<CollectivesHeader*>(at);
  block.slots = LoadAcquire(&block.header->slots);
  block.groups_max = LoadAcquire(&block.header->groups_max);
  if (block.slots == 0 || block.slots > kSlotsMax) return {};
  if (block.groups_max == 0 || block.groups_max > kGroupsMax) return {};
  const size_t groups_bytes = sizeof(GroupSlot) * block.groups_max;
  const size_t ring_bytes = sizeof(CollectiveSlot) * block.slots;
  if (length < sizeof(CollectivesHeader) + groups_bytes + ring_bytes) return {};
  block.groups = reinterpret_cast<GroupSlot*>(at + sizeof(CollectivesHeader));
  block.ring = reinterpret_cast<CollectiveSlot*>(at + sizeof(CollectivesHeader) + groups_bytes);
  return block;
}

// The step an operation belongs to: of a program that tells no phases only finished steps are
// known.
uint64_t CurrentStep(const RecorderHeader* recorder) {
  const ProgressLine& p = recorder->progress;
  return std::max(p.step.load(std::memory_order_relaxed),
                  p.steps_done.load(std::memory_order_relaxed) + 1);
}

GroupRecord::Counts Copy(const CollectiveCounts& counts) {
  GroupRecord::Counts copy;
  // In this order: an operation that begins and ends meanwhile is not seen as ended before it
  // began.
  copy.failed = counts.failed.load(std::memory_order_acquire);
  copy.ended = counts.ended.load(std::memory_order_acquire);
  copy.begun = counts.begun.load(std::memory_order_acquire);
  return copy;
}

}  // namespace

void InitCollectives(void* block) {
  auto* header = static_cast<CollectivesHeader*>(block);
  header->slots = kCollectiveSlots;
  header->groups_max = kCollectiveGroupsMax;
}

uint64_t RanksDigest(const uint32_t* ranks, size_t count) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < count; ++i) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= (ranks[i] >> shift) & 0xff;
      hash *= 0x100000001b3ull;
    }
  }
  return hash == 0 ? 1 : hash;
}

CollectiveWriter::CollectiveWriter(void* recorder, size_t bytes) {
  const Block block = Find(recorder, bytes);
  if (block.header == nullptr) return;
  recorder_ = static_cast<RecorderHeader*>(recorder);
  block_ = block.header;
  groups_ = block.groups;
  ring_ = block.ring;
  slots_ = block.slots;
  groups_max_ = block.groups_max;
}

uint32_t CollectiveWriter::AddGroup(const char* name, const uint32_t* ranks, uint32_t size) {
  if (!valid()) return 0;
  uint32_t index = block_->groups.load(std::memory_order_relaxed);
  do {
    if (index >= groups_max_) {
      block_->groups_refused.fetch_add(1, std::memory_order_relaxed);
      return 0;
    }
  } while (!block_->groups.compare_exchange_weak(index, index + 1, std::memory_order_relaxed));
  GroupSlot& slot = groups_[index];
  slot.size = size;
  strncpy(slot.name, name, kGroupNameBytes - 1);
  if (ranks != nullptr) {
    slot.listed = std::min(size, kGroupRanksListed);
    for (uint32_t i = 0; i < slot.listed; ++i) slot.ranks[i] = ranks[i];
    slot.ranks_digest = RanksDigest(ranks, size);
  }
  slot.ready.store(1, std::memory_order_release);
  return index + 1;
}

// Makes the slot of `ticket` this thread's own; null when its owner does not let go of it.
CollectiveSlot* CollectiveWriter::Take(uint64_t ticket, uint64_t* seq) {
  CollectiveSlot& slot = ring_[ticket % slots_];
  for (int i = 0; i < kSeqlockTries; ++i) {
    *seq = slot.seq.load(std::memory_order_relaxed);
    if (*seq % 2 == 0 &&
        slot.seq.compare_exchange_weak(*seq, *seq + 1, std::memory_order_acquire)) {
      return &slot;
    }
  }
  block_->dropped.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

uint64_t CollectiveWriter::Begin(const CollectiveBegin& operation, uint64_t now_ns) {
  if (!valid() || operation.group == 0 || operation.group > groups_max_) return 0;
  GroupSlot& group = groups_[operation.group - 1];
  const bool pairwise = IsPointToPoint(operation.kind);
  CollectiveCounts& counts = pairwise ? group.point_to_point : group.collectives;
  const uint64_t number = counts.begun.fetch_add(1, std::memory_order_release) + 1;
  const uint64_t ticket = block_->tickets.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t handle = (ticket & kTicketMask) | uint64_t{operation.group} << kGroupShift |
                          uint64_t{pairwise} << kPointToPointShift;
  uint64_t seq = 0;
  CollectiveSlot* slot = Take(ticket, &seq);
  if (slot == nullptr) return handle;
  if (slot->ticket < ticket) {  // else one a whole ring younger was faster
    StoreRelease(&slot->ticket, ticket);
    StoreRelease(&slot->number, number);
    StoreRelease(&slot->begin_ns, now_ns);
    StoreRelease(&slot->end_ns, uint64_t{0});
    StoreRelease(&slot->bytes, operation.bytes);
    StoreRelease(&slot->step, CurrentStep(recorder_));
    StoreRelease(&slot->group, static_cast<uint8_t>(operation.group));
    StoreRelease(&slot->kind,
                 static_cast<uint8_t>(operation.kind < kCollectiveKinds ? operation.kind : 0));
    StoreRelease(&slot->dtype, static_cast<uint8_t>(operation.dtype));
    StoreRelease(&slot->outcome, static_cast<uint8_t>(kRunning));
    StoreRelease(&slot->peer, operation.peer);
  }
  slot->seq.store(seq + 2, std::memory_order_release);
  return handle;
}

void CollectiveWriter::End(uint64_t handle, CollectiveOutcome outcome, uint64_t now_ns) {
  const uint64_t ticket = handle & kTicketMask;
  const uint32_t number = (handle >> kGroupShift) & UINT8_MAX;
  if (!valid() || ticket == 0 || number == 0 || number > groups_max_) return;
  uint64_t seq = 0;
  if (CollectiveSlot* slot = Take(ticket, &seq)) {
    if (slot->ticket == ticket) {
      StoreRelease(&slot->end_ns, now_ns);
      StoreRelease(&slot->outcome, static_cast<uint8_t>(outcome));
    }
    slot->seq.store(seq + 2, std::memory_order_release);
  }
  GroupSlot& group = groups_[number - 1];
  CollectiveCounts& counts =
      handle >> kPointToPointShift != 0 ? group.point_to_point : group.collectives;
  counts.ended.fetch_add(1, std::memory_order_release);
  if (outcome == kFailed) counts.failed.fetch_add(1, std::memory_order_release);
}

CollectiveReader::CollectiveReader(const void* recorder, size_t bytes) {
  const Block block = Find(const_cast<void*>(recorder), bytes);
  if (block.header == nullptr) return;
  block_ = block.header;
  groups_ = block.groups;
  ring_ = block.ring;
  slots_ = block.slots;
  groups_max_ = block.groups_max;
}

std::vector<GroupRecord> CollectiveReader::Groups() const {
  std::vector<GroupRecord> out;
  if (!valid()) return out;
  const uint32_t given = std::min(block_->groups.load(std::memory_order_acquire), groups_max_);
  for (uint32_t i = 0; i < given; ++i) {
    GroupSlot& slot = groups_[i];
    if (slot.ready.load(std::memory_order_acquire) != 1) continue;
    GroupRecord record;
    record.group = i + 1;
    record.size = LoadAcquire(&slot.size);
    record.ranks_digest = LoadAcquire(&slot.ranks_digest);
    for (size_t c = 0; c + 1 < kGroupNameBytes; ++c) record.name[c] = LoadAcquire(&slot.name[c]);
    const uint32_t listed = std::min(LoadAcquire(&slot.listed), kGroupRanksListed);
    for (uint32_t r = 0; r < listed; ++r) record.ranks.push_back(LoadAcquire(&slot.ranks[r]));
    record.collectives = Copy(slot.collectives);
    record.point_to_point = Copy(slot.point_to_point);
    out.push_back(std::move(record));
  }
  return out;
}

bool CollectiveReader::ReadSlot(uint32_t index, CollectiveRecord* out) const {
  CollectiveSlot& slot = ring_[index];
  for (int i = 0; i < kSeqlockTries; ++i) {
    const uint64_t seq = slot.seq.load(std::memory_order_acquire);
    if (seq == 0) return false;
    if (seq % 2 != 0) continue;
    CollectiveRecord copy;
    copy.ticket = LoadAcquire(&slot.ticket);
    copy.number = LoadAcquire(&slot.number);
    copy.begin_ns = LoadAcquire(&slot.begin_ns);
    copy.end_ns = LoadAcquire(&slot.end_ns);
    copy.bytes = LoadAcquire(&slot.bytes);
    copy.step = LoadAcquire(&slot.step);
    copy.group = LoadAcquire(&slot.group);
    copy.kind = LoadAcquire(&slot.kind);
    copy.dtype = LoadAcquire(&slot.dtype);
    copy.outcome = LoadAcquire(&slot.outcome);
    copy.peer = LoadAcquire(&slot.peer);
    if (slot.seq.load(std::memory_order_relaxed) != seq) continue;
    *out = copy;
    return copy.ticket % slots_ == index;
  }
  return false;
}

std::vector<CollectiveRecord> CollectiveReader::Operations() const {
  std::vector<CollectiveRecord> out;
  CollectiveRecord record;
  for (uint32_t i = 0; i < slots_; ++i) {
    if (ReadSlot(i, &record)) out.push_back(record);
  }
  std::sort(out.begin(), out.end(), [](const CollectiveRecord& a, const CollectiveRecord& b) {
    return a.ticket < b.ticket;
  });
  return out;
}

std::vector<CollectiveRecord> CollectiveReader::Running() const {
  std::vector<CollectiveRecord> out = Operations();
  std::erase_if(out, [](const CollectiveRecord& r) { return r.end_ns != 0; });
  return out;
}

uint64_t CollectiveReader::Begun() const {
  return valid() ? block_->tickets.load(std::memory_order_acquire) : 0;
}

}  // namespace holdfast::rank
