// SPDX-License-Identifier: Apache-2.0
// Memory order. Both seqlocks store their data with release and load it with acquire instead of
// using fences: a reader that sees any datum of a write in progress also sees that write's odd
// sequence number in its second look. ThreadSanitizer understands this form, and on x86 both are
// plain moves.
#include "base/rank/recorder.h"

#include <string.h>

#include "base/rank/collectives.h"

namespace holdfast::rank {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint32_t kStepSlotsMax = 1u << 20;  // readers accept other builds' ring sizes up to this
constexpr uint32_t kMessageBytesMax = 1u << 20;
constexpr int kSeqlockTries = 1000;  // then the writer is taken for dead or stopped inside a write

constexpr size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
constexpr size_t kStepRingOffset = RoundUp(sizeof(RecorderHeader), 128);
constexpr size_t kMessageOffset = kStepRingOffset + sizeof(StepSlot) * kStepSlots;
constexpr size_t kCollectivesOffset = RoundUp(kMessageOffset + kMessageBytes, kPageBytes);

template <typename T>
void StoreRelease(T* to, T value) {
  std::atomic_ref<T>(*to).store(value, std::memory_order_release);
}
template <typename T>
T LoadAcquire(T* from) {
  return std::atomic_ref<T>(*from).load(std::memory_order_acquire);
}

struct Geometry {
  uint64_t magic, total_bytes, step_ring_offset, message_offset, op_ring_offset, op_ring_bytes;
  uint64_t collectives_offset, collectives_bytes;
  uint32_t version, layout, header_bytes, step_slots, message_bytes;
};

Geometry CopyGeometry(RecorderHeader* h) {
  Geometry g;
  g.magic = LoadAcquire(&h->magic);
  g.version = LoadAcquire(&h->version);
  g.header_bytes = LoadAcquire(&h->header_bytes);
  g.total_bytes = LoadAcquire(&h->total_bytes);
  g.step_slots = LoadAcquire(&h->step_slots);
  g.message_bytes = LoadAcquire(&h->message_bytes);
  g.step_ring_offset = LoadAcquire(&h->step_ring_offset);
  g.message_offset = LoadAcquire(&h->message_offset);
  g.op_ring_offset = LoadAcquire(&h->op_ring_offset);
  g.op_ring_bytes = LoadAcquire(&h->op_ring_bytes);
  g.layout = LoadAcquire(&h->layout);
  g.collectives_offset = LoadAcquire(&h->collectives_offset);
  g.collectives_bytes = LoadAcquire(&h->collectives_bytes);
  return g;
}

bool Inside(uint64_t offset, uint64_t length, uint64_t from, uint64_t bytes) {
  return offset >= from && offset <= bytes && length <= bytes - offset;
}

// Layout 1 has none. A newer layout than ours keeps what was in ours, or it raises `version`.
bool HasCollectives(const Geometry& g) { return g.layout >= 2; }

bool CollectivesFit(const Geometry& g, size_t bytes) {
  return g.collectives_offset % alignof(CollectiveSlot) == 0 &&
         Inside(g.collectives_offset, g.collectives_bytes, g.header_bytes, bytes);
}

// Null when the numbers describe a recorder that fits into `bytes`.
const char* Problem(const Geometry& g, size_t bytes) {
  if (g.magic != kRecorderMagic) return "recorder: wrong magic";
  if (g.version != kRecorderVersion) return "recorder: version is not 1";
  if (g.header_bytes < sizeof(RecorderHeader) || g.header_bytes > bytes)
    return "recorder: header_bytes out of range";
  if (g.total_bytes != bytes) return "recorder: total_bytes is not the size of the mapping";
  if (g.step_slots == 0 || g.step_slots > kStepSlotsMax) return "recorder: step_slots out of range";
  if (g.message_bytes == 0 || g.message_bytes > kMessageBytesMax)
    return "recorder: message_bytes out of range";
  if (g.step_ring_offset % alignof(StepSlot) != 0)
    return "recorder: step_ring_offset is not aligned";
  if (!Inside(g.step_ring_offset, uint64_t{g.step_slots} * sizeof(StepSlot), g.header_bytes,
              bytes)) {
    return "recorder: the step ring leaves the mapping";
  }
  if (!Inside(g.message_offset, g.message_bytes, g.header_bytes, bytes))
    return "recorder: the message area leaves the mapping";
  if (g.op_ring_offset != 0 || g.op_ring_bytes != 0)
    return "recorder: version 1 has no operation ring";
  if (HasCollectives(g) && !CollectivesFit(g, bytes))
    return "recorder: the collectives leave the mapping";
  return nullptr;
}

char* MessageArea(RecorderHeader* header, uint64_t offset) {
  return reinterpret_cast<char*>(header) + offset;
}

}  // namespace

size_t RecorderBytes() { return RoundUp(kCollectivesOffset + CollectivesBytes(), kPageBytes); }

bool CollectivesIn(void* base, size_t bytes, uint64_t* offset, uint64_t* length) {
  if (bytes < sizeof(RecorderHeader)) return false;
  const Geometry g = CopyGeometry(static_cast<RecorderHeader*>(base));
  if (Problem(g, bytes) != nullptr || !HasCollectives(g)) return false;
  *offset = g.collectives_offset;
  *length = g.collectives_bytes;
  return true;
}

void InitRecorder(void* base, uint64_t job, uint64_t attempt, uint32_t rank, uint32_t world_size) {
  auto* h = static_cast<RecorderHeader*>(base);
  h->version = kRecorderVersion;
  h->header_bytes = sizeof(RecorderHeader);
  h->total_bytes = RecorderBytes();
  h->job = job;
  h->attempt = attempt;
  h->rank = rank;
  h->world_size = world_size;
  h->step_slots = kStepSlots;
  h->message_bytes = kMessageBytes;
  h->step_ring_offset = kStepRingOffset;
  h->message_offset = kMessageOffset;
  h->op_ring_offset = 0;
  h->op_ring_bytes = 0;
  h->layout = kRecorderLayout;
  h->collectives_offset = kCollectivesOffset;
  h->collectives_bytes = CollectivesBytes();
  InitCollectives(static_cast<char*>(base) + kCollectivesOffset);
  h->control.attempt_current.store(attempt, std::memory_order_relaxed);
  StoreRelease(&h->magic, kRecorderMagic);
}

void RecorderWriter::EnterPhase(Phase phase, uint64_t step, uint32_t micro_batch, uint64_t now_ns) {
  ProgressLine& p = header_->progress;
  const uint64_t seq = p.seq.load(std::memory_order_relaxed);
  p.seq.store(seq + 1, std::memory_order_relaxed);
  p.step.store(step, std::memory_order_release);
  p.phase.store(phase, std::memory_order_release);
  p.micro_batch.store(micro_batch, std::memory_order_release);
  p.phase_enter_ns.store(now_ns, std::memory_order_release);
  p.tick.store(p.tick.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  p.seq.store(seq + 2, std::memory_order_release);
}

void RecorderWriter::FinishStep(const StepRecord& record) {
  auto* slot = reinterpret_cast<StepSlot*>(reinterpret_cast<char*>(header_) + kStepRingOffset) +
               record.step % kStepSlots;
  const uint64_t slot_seq = slot->seq.load(std::memory_order_relaxed);
  slot->seq.store(slot_seq + 1, std::memory_order_relaxed);
  StoreRelease(&slot->step, record.step);
  StoreRelease(&slot->samples, record.samples);
  StoreRelease(&slot->loss, record.loss);
  StoreRelease(&slot->grad_norm, record.grad_norm);
  StoreRelease(&slot->lr, record.lr);
  StoreRelease(&slot->tokens_per_s, record.tokens_per_s);
  StoreRelease(&slot->done_ns, record.done_ns);
  StoreRelease(&slot->snapshot_stall_ns, record.snapshot_stall_ns);
  slot->seq.store(slot_seq + 2, std::memory_order_release);

  // After the slot: whoever sees steps_done also finds the step's record.
  ProgressLine& p = header_->progress;
  const uint64_t seq = p.seq.load(std::memory_order_relaxed);
  p.seq.store(seq + 1, std::memory_order_relaxed);
  p.steps_done.store(record.step, std::memory_order_release);
  if (p.first_step_done_ns.load(std::memory_order_relaxed) == 0) {
    p.first_step.store(record.step, std::memory_order_release);
    p.first_step_done_ns.store(record.done_ns, std::memory_order_release);
  }
  p.tick.store(p.tick.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  p.seq.store(seq + 2, std::memory_order_release);
}

void RecorderWriter::SetMessage(const char* text, size_t bytes) {
  if (bytes > kMessageBytes) bytes = kMessageBytes;
  header_->message_used.store(0, std::memory_order_release);
  char* area = MessageArea(header_, kMessageOffset);
  for (size_t i = 0; i < bytes; ++i) StoreRelease(area + i, text[i]);
  header_->message_used.store(static_cast<uint32_t>(bytes), std::memory_order_release);
}

void RecorderWriter::CountSnapshot(bool sealed) {
  auto& counter = sealed ? header_->snapshots_sealed : header_->snapshots_skipped;
  counter.fetch_add(1, std::memory_order_relaxed);
}

bool RecorderWriter::AttemptIsCurrent() const {
  return header_->control.attempt_current.load(std::memory_order_acquire) <= header_->attempt;
}

StopReason RecorderWriter::ShouldStop() const {
  return static_cast<StopReason>(header_->control.should_stop.load(std::memory_order_acquire));
}

uint64_t RecorderWriter::SaveRequests() const {
  return header_->control.save_request.load(std::memory_order_acquire);
}

bool RecorderWriter::AgentPresent() const {
  return header_->control.agent_present.load(std::memory_order_acquire) != 0;
}

bool RecorderReader::Validate(const void* base, size_t bytes, const char** reason) {
  const char* problem = "recorder: smaller than its header";
  if (bytes >= sizeof(RecorderHeader)) {
    problem = Problem(CopyGeometry(static_cast<RecorderHeader*>(const_cast<void*>(base))), bytes);
  }
  if (problem != nullptr && reason != nullptr) *reason = problem;
  return problem == nullptr;
}

RecorderReader::RecorderReader(void* base, size_t bytes)
    : header_(static_cast<RecorderHeader*>(base)), bytes_(bytes) {
  // The rank may have changed the header since it was validated: one copy is checked and only that
  // copy is used. A copy that fails leaves an empty geometry, on which every read is false.
  if (bytes_ < sizeof(RecorderHeader)) return;
  const Geometry g = CopyGeometry(header_);
  if (Problem(g, bytes_) != nullptr) return;
  step_slots_ = g.step_slots;
  step_ring_offset_ = g.step_ring_offset;
  message_bytes_ = g.message_bytes;
  message_offset_ = g.message_offset;
}

bool RecorderReader::ReadProgress(Progress* out) const {
  ProgressLine& p = header_->progress;
  for (int i = 0; i < kSeqlockTries; ++i) {
    const uint64_t seq = p.seq.load(std::memory_order_acquire);
    if (seq % 2 != 0) continue;
    Progress copy;
    copy.step = p.step.load(std::memory_order_acquire);
    copy.steps_done = p.steps_done.load(std::memory_order_acquire);
    copy.phase = p.phase.load(std::memory_order_acquire);
    copy.micro_batch = p.micro_batch.load(std::memory_order_acquire);
    copy.phase_enter_ns = p.phase_enter_ns.load(std::memory_order_acquire);
    copy.first_step_done_ns = p.first_step_done_ns.load(std::memory_order_acquire);
    copy.first_step = p.first_step.load(std::memory_order_acquire);
    copy.tick = p.tick.load(std::memory_order_acquire);
    if (p.seq.load(std::memory_order_relaxed) != seq) continue;
    *out = copy;
    return true;
  }
  return false;
}

bool RecorderReader::ReadStep(uint64_t step, StepRecord* out) const {
  if (step_slots_ == 0) return false;
  auto* ring = reinterpret_cast<StepSlot*>(reinterpret_cast<char*>(header_) + step_ring_offset_);
  StepSlot& slot = ring[step % step_slots_];
  for (int i = 0; i < kSeqlockTries; ++i) {
    const uint64_t seq = slot.seq.load(std::memory_order_acquire);
    if (seq == 0) return false;
    if (seq % 2 != 0) continue;
    StepRecord copy;
    copy.step = LoadAcquire(&slot.step);
    copy.samples = LoadAcquire(&slot.samples);
    copy.loss = LoadAcquire(&slot.loss);
    copy.grad_norm = LoadAcquire(&slot.grad_norm);
    copy.lr = LoadAcquire(&slot.lr);
    copy.tokens_per_s = LoadAcquire(&slot.tokens_per_s);
    copy.done_ns = LoadAcquire(&slot.done_ns);
    copy.snapshot_stall_ns = LoadAcquire(&slot.snapshot_stall_ns);
    if (slot.seq.load(std::memory_order_relaxed) != seq) continue;
    if (copy.step != step) return false;
    *out = copy;
    return true;
  }
  return false;
}

size_t RecorderReader::ReadMessage(char* out, size_t capacity) const {
  size_t bytes = header_->message_used.load(std::memory_order_acquire);
  if (bytes > message_bytes_) bytes = message_bytes_;
  if (bytes > capacity) bytes = capacity;
  char* area = MessageArea(header_, message_offset_);
  for (size_t i = 0; i < bytes; ++i) out[i] = LoadAcquire(area + i);
  return bytes;
}

uint32_t RecorderReader::SnapshotsSealed() const {
  return header_->snapshots_sealed.load(std::memory_order_relaxed);
}

uint32_t RecorderReader::SnapshotsSkipped() const {
  return header_->snapshots_skipped.load(std::memory_order_relaxed);
}

ControlLine* RecorderReader::control() const { return &header_->control; }

}  // namespace holdfast::rank
