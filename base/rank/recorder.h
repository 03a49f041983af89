// SPDX-License-Identifier: Apache-2.0
// The recorder: one memfd for each (rank, attempt), made and sealed (F_SEAL_SHRINK|F_SEAL_GROW) by
// the keeper, mapped by the rank, the keeper and the agent. It stays readable when the rank is
// dead, stopped or in D state. docs/formats/rank.md.
//
// Who writes what: the "control" line is written by keeper and agent and read by the rank; all else
// is written by the rank. Readers treat everything as hostile: sizes are checked against the
// mapping, torn slots are reported, nothing is followed.
#ifndef HOLDFAST_BASE_RANK_RECORDER_H_
#define HOLDFAST_BASE_RANK_RECORDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace holdfast::rank {

inline constexpr uint64_t kRecorderMagic =
    0x3152434552465548ull;  // "HUFRECR1" as little-endian bytes
// `version` is the oldest layout whose readers can read this recorder, `layout` the newest whose
// parts are in it. Layout 2 adds collectives and leaves all of layout 1 in place: the keeper, which
// makes the recorder, cannot know how old the client library in a job's image is.
inline constexpr uint32_t kRecorderVersion = 1;
inline constexpr uint32_t kRecorderLayout = 2;
inline constexpr uint32_t kStepSlots = 1024;
inline constexpr uint32_t kMessageBytes = 2048;

enum Phase : uint32_t {
  kPhaseStart = 0,     // process started, nothing known
  kPhaseInit = 1,      // imports, model construction
  kPhaseCommInit = 2,  // rendezvous, communicators
  kPhaseRestore = 3,
  kPhaseFirstStep = 4,  // also compilation
  kPhaseData = 5,
  kPhaseForward = 6,
  kPhaseBackward = 7,
  kPhaseReduce = 8,
  kPhaseOptimizer = 9,
  kPhaseSnapshot = 10,
  kPhaseEval = 11,
  kPhaseTeardown = 12,
  kPhaseDone = 13,
};

enum StopReason : uint32_t {
  kStopNone = 0,
  kStopCancel = 1,
  kStopPreempt = 2,
  kStopDrain = 3,
  kStopTimeLimit = 4,
  kStopRecovery = 5,
};

// Written by keeper and agent.
struct alignas(64) ControlLine {
  std::atomic<uint64_t> attempt_current;  // a rank that was started for an older one stops before
                                          // its next step or seal
  std::atomic<uint32_t>
      should_stop;  // StopReason; the rank seals a last snapshot with persist and exits 0
  std::atomic<uint32_t> agent_present;         // 1 while an agent is attached
  std::atomic<uint64_t> newest_complete_step;  // newest snapshot known to be sealed by every rank
                                               // of the attempt; 0 = none
  std::atomic<uint64_t> fence_deadline_ns;     // CLOCK_MONOTONIC; 0 = none
  std::atomic<uint64_t>
      save_request;  // raised by one for each `holdfast save`; rank 0 folds it into its next step
  uint64_t reserved[2];
};
static_assert(sizeof(ControlLine) == 64);

// Written by the rank; a seqlock: `seq` is odd while the line changes.
struct alignas(64) ProgressLine {
  std::atomic<uint64_t> seq;
  std::atomic<uint64_t> step;        // the step being worked on; steps count from 1
  std::atomic<uint64_t> steps_done;  // newest finished step
  std::atomic<uint32_t> phase;       // Phase
  std::atomic<uint32_t> micro_batch;
  std::atomic<uint64_t> phase_enter_ns;      // CLOCK_MONOTONIC
  std::atomic<uint64_t> first_step_done_ns;  // CLOCK_MONOTONIC of the first step finished in this
                                             // attempt; 0 = none yet
  std::atomic<uint64_t> first_step;          // which step that was
  std::atomic<uint64_t> tick;                // grows with every mark
};
static_assert(sizeof(ProgressLine) == 64);

// One finished step; a ring, slot = (step % kStepSlots). seq is odd while it is written.
struct alignas(64) StepSlot {
  std::atomic<uint64_t> seq;
  uint64_t step;
  uint64_t samples;  // consumed since the start of the job
  double loss;
  double grad_norm;
  double lr;
  double tokens_per_s;
  uint64_t done_ns;            // CLOCK_MONOTONIC
  uint64_t snapshot_stall_ns;  // time the training thread spent for this step's snapshot
  uint64_t reserved[7];
};
static_assert(sizeof(StepSlot) == 128);

struct RecorderHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;  // sizeof(RecorderHeader)
  uint64_t total_bytes;
  uint64_t job;
  uint64_t attempt;  // the attempt this process was started for
  uint32_t rank;
  uint32_t world_size;
  uint32_t step_slots;     // kStepSlots
  uint32_t message_bytes;  // kMessageBytes
  uint64_t step_ring_offset;
  uint64_t message_offset;
  uint64_t op_ring_offset;  // 0: readers of layout 1 refuse anything else
  uint64_t op_ring_bytes;
  uint32_t layout;  // kRecorderLayout; 0 in recorders of layout 1, as all that follows
  uint32_t reserved_layout;
  uint64_t collectives_offset;  // base/rank/collectives.h
  uint64_t collectives_bytes;
  uint64_t reserved;
  ControlLine control;
  ProgressLine progress;
  alignas(64) std::atomic<uint64_t> pid;
  std::atomic<uint64_t> hello_ns;
  std::atomic<uint32_t>
      message_used;  // bytes of the message area in use; the rank's last words (exception text)
  std::atomic<uint32_t> snapshots_sealed;
  std::atomic<uint32_t> snapshots_skipped;
  uint32_t pad[9];
};
static_assert(sizeof(RecorderHeader) == 320 && offsetof(RecorderHeader, control) == 128,
              "layout 1 is frozen into images");
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Bytes of a recorder of this layout (a multiple of the page size).
size_t RecorderBytes();

// Where a recorder that is mapped with `bytes` has its collectives. False when it has none (layout
// 1) or they are not inside.
bool CollectivesIn(void* base, size_t bytes, uint64_t* offset, uint64_t* length);

// Fills a zeroed mapping of RecorderBytes() bytes.
void InitRecorder(void* base, uint64_t job, uint64_t attempt, uint32_t rank, uint32_t world_size);

// A step as it is written and read.
struct StepRecord {
  uint64_t step = 0;
  uint64_t samples = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  uint64_t done_ns = 0;
  uint64_t snapshot_stall_ns = 0;
};

// The rank's side. One writer thread at a time; wait-free; not owning.
class RecorderWriter {
 public:
  RecorderWriter() = default;
  explicit RecorderWriter(void* base) : header_(static_cast<RecorderHeader*>(base)) {}
  bool valid() const { return header_ != nullptr; }
  void EnterPhase(Phase phase, uint64_t step, uint32_t micro_batch, uint64_t now_ns);
  void FinishStep(const StepRecord& record);
  void SetMessage(const char* text, size_t bytes);  // truncated to kMessageBytes; async-signal-safe
  void CountSnapshot(bool sealed);
  bool AttemptIsCurrent() const;
  StopReason ShouldStop() const;
  uint64_t SaveRequests() const;
  bool AgentPresent() const;
  RecorderHeader* header() const { return header_; }

 private:
  RecorderHeader* header_ = nullptr;
};

struct Progress {
  uint64_t step = 0, steps_done = 0, phase_enter_ns = 0, first_step_done_ns = 0, first_step = 0,
           tick = 0;
  uint32_t phase = 0, micro_batch = 0;
};

// The keeper's and the agent's side. Validates before every use; not owning.
class RecorderReader {
 public:
  // `bytes` is the size of the mapping. False (and a reason) for what is not a recorder of a
  // version we read.
  static bool Validate(const void* base, size_t bytes, const char** reason);
  // Requires that Validate returned true for the same mapping. The rank can still overwrite the
  // header at any time, so the reader keeps its own copy of all offsets and sizes.
  RecorderReader(void* base, size_t bytes);
  bool ReadProgress(
      Progress* out) const;  // false: torn (the rank died or was stopped inside a write)
  bool ReadStep(uint64_t step, StepRecord* out) const;  // false: not there, overwritten or torn
  size_t ReadMessage(char* out, size_t capacity) const;
  uint32_t SnapshotsSealed() const;
  uint32_t SnapshotsSkipped() const;
  ControlLine* control() const;

 private:
  RecorderHeader* header_;
  size_t bytes_;
  uint32_t step_slots_ = 0;  // the reader's own copies
  uint32_t message_bytes_ = 0;
  uint64_t step_ring_offset_ = 0;
  uint64_t message_offset_ = 0;
};

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_RECORDER_H_
