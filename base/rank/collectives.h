// SPDX-License-Identifier: Apache-2.0
// Collective operations in a rank's recorder: a table of process groups with counts, and a ring of
// the newest operations. It is there so that a hang can be explained from outside: which operation
// a rank is in, and which rank has not begun the one that the others wait in.
// docs/formats/rank.md, "Collectives".
//
// Writers are any threads of the rank (a program's own, autograd's, the one that sees operations
// end); readers are other processes and treat everything as hostile.
#ifndef HOLDFAST_BASE_RANK_COLLECTIVES_H_
#define HOLDFAST_BASE_RANK_COLLECTIVES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rank/recorder.h"

namespace holdfast::rank {

inline constexpr uint32_t kCollectiveGroupsMax = 128;  // of one process, in its whole life
inline constexpr uint32_t kCollectiveSlots = 4096;     // newest operations of all groups
inline constexpr uint32_t kGroupNameBytes = 64;        // with the NUL
inline constexpr uint32_t kGroupRanksListed = 32;      // of larger groups only the digest is kept

enum CollectiveKind : uint8_t {
  kCollectiveOther = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kAllToAll = 5,
  kSend = 6,
  kRecv = 7,
  kBarrier = 8,
  kReduce = 9,
  kGather = 10,
  kScatter = 11,
};
inline constexpr uint32_t kCollectiveKinds = 12;

// Sends and receives pair up ranks at will: they are numbered and counted apart, since only what
// all ranks of a group do in one order can be compared between them.
constexpr bool IsPointToPoint(uint32_t kind) { return kind == kSend || kind == kRecv; }

enum CollectiveOutcome : uint8_t {
  kRunning = 0,
  kFinished = 1,
  kFailed = 2,
  kEndUnseen = 3,  // nobody could tell when it ended; end_ns is when that was given up
};

// What is counted for the collectives of a group, and again for its sends and receives.
struct CollectiveCounts {
  std::atomic<uint64_t> begun;
  std::atomic<uint64_t> ended;   // in whatever way
  std::atomic<uint64_t> failed;  // among those
  uint64_t reserved;
};

struct alignas(64) GroupSlot {
  std::atomic<uint32_t> ready;  // 1 when all else but the counts is written, for good
  uint32_t size;
  uint32_t listed;  // entries of `ranks` in use; 0 when the ranks are not known
  uint32_t reserved;
  uint64_t ranks_digest;       // RanksDigest of all of them; 0 when they are not known
  char name[kGroupNameBytes];  // NUL-terminated; cut when it is longer
  uint8_t reserved_name[40];
  CollectiveCounts collectives;
  CollectiveCounts point_to_point;
  uint32_t ranks[kGroupRanksListed];  // of the job, in the group's order
};
static_assert(offsetof(GroupSlot, collectives) == 128 && offsetof(GroupSlot, ranks) == 192);
static_assert(sizeof(GroupSlot) == 320);

// One operation: a cache line. `seq` is odd while a writer changes it; writers take it by
// compare-and-swap, since two may meet here.
struct alignas(64) CollectiveSlot {
  std::atomic<uint64_t> seq;
  uint64_t ticket;  // of all operations of the process, from 1; slot = ticket % slots
  uint64_t number;  // within its group, from 1; sends and receives count apart
  uint64_t begin_ns;
  uint64_t end_ns;  // 0 while it runs
  uint64_t bytes;
  uint64_t step;
  uint8_t group;  // from 1: entry group - 1 of the table
  uint8_t kind;
  uint8_t dtype;
  uint8_t outcome;
  int32_t peer;  // root, or the other end of a send; -1: none
};
static_assert(sizeof(CollectiveSlot) == 64);
static_assert(kCollectiveGroupsMax <= UINT8_MAX,
              "CollectiveSlot::group and the handle have 8 bits");

struct alignas(64) CollectivesHeader {
  uint32_t slots;
  uint32_t groups_max;
  std::atomic<uint32_t> groups;  // entries given out
  std::atomic<uint32_t> groups_refused;
  std::atomic<uint64_t> dropped;  // operations that found their slot taken by a writer that hangs
  uint64_t reserved[5];
  alignas(64) std::atomic<uint64_t> tickets;  // given out
};
static_assert(sizeof(CollectivesHeader) == 128);

// Bytes of the whole block (a multiple of 64): header, groups, ring.
constexpr size_t CollectivesBytes() {
  return sizeof(CollectivesHeader) + sizeof(GroupSlot) * kCollectiveGroupsMax +
         sizeof(CollectiveSlot) * kCollectiveSlots;
}

// Fills a zeroed block of that many bytes.
void InitCollectives(void* block);

// FNV-1a over the ranks as little-endian u32, in the group's order. Never 0.
uint64_t RanksDigest(const uint32_t* ranks, size_t count);

// An operation as it begins.
struct CollectiveBegin {
  uint32_t group = 0;
  uint32_t kind = kCollectiveOther;
  uint32_t dtype = 0;
  int32_t peer = -1;
  uint64_t bytes = 0;
};

// The rank's side. Not owning; any number of threads at once; no call waits for another.
class CollectiveWriter {
 public:
  CollectiveWriter() = default;
  // A recorder without collectives (of an older keeper) gives a writer that is not valid() and
  // whose calls do nothing.
  explicit CollectiveWriter(void* recorder, size_t bytes);
  bool valid() const { return block_ != nullptr; }

  // The group's number, from 1; 0 when the table is full. `ranks` may be null: not known. One call
  // for each process group that is made, also for one that has the name of an earlier one.
  uint32_t AddGroup(const char* name, const uint32_t* ranks, uint32_t size);
  // What End wants; 0 for a group that is not there.
  uint64_t Begin(const CollectiveBegin& operation, uint64_t now_ns);
  void End(uint64_t handle, CollectiveOutcome outcome, uint64_t now_ns);

 private:
  CollectiveSlot* Take(uint64_t ticket, uint64_t* seq);

  RecorderHeader* recorder_ = nullptr;
  CollectivesHeader* block_ = nullptr;
  GroupSlot* groups_ = nullptr;
  CollectiveSlot* ring_ = nullptr;
  uint32_t slots_ = 0, groups_max_ = 0;  // own copies: End must not leave the block for anything
};

struct GroupRecord {
  struct Counts {
    uint64_t begun = 0, ended = 0, failed = 0;
  };
  uint32_t group = 0;
  uint32_t size = 0;
  uint64_t ranks_digest = 0;
  char name[kGroupNameBytes] = {};
  std::vector<uint32_t> ranks;  // at most kGroupRanksListed; empty: not known
  Counts collectives, point_to_point;
};

struct CollectiveRecord {
  uint64_t ticket = 0, number = 0, begin_ns = 0, end_ns = 0, bytes = 0, step = 0;
  uint32_t group = 0, kind = 0, dtype = 0, outcome = 0;
  int32_t peer = -1;
};

// The agent's side, over the same mapping as a RecorderReader. Keeps its own copy of the geometry;
// bytes that make no sense give nothing.
class CollectiveReader {
 public:
  CollectiveReader(const void* recorder, size_t bytes);
  bool valid() const { return groups_max_ != 0; }  // false: the recorder has no collectives
  std::vector<GroupRecord> Groups() const;
  // Operations that are still in the ring, oldest first; those that were being written are left
  // out.
  std::vector<CollectiveRecord> Operations() const;
  // Those of them that have begun and not ended.
  std::vector<CollectiveRecord> Running() const;
  uint64_t Begun() const;  // operations of all groups together

 private:
  bool ReadSlot(uint32_t index, CollectiveRecord* out) const;

  CollectivesHeader* block_ = nullptr;
  GroupSlot* groups_ = nullptr;
  CollectiveSlot* ring_ = nullptr;
  uint32_t slots_ = 0, groups_max_ = 0;
};

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_COLLECTIVES_H_
