// SPDX-License-Identifier: Apache-2.0
// What a rank's own past says of its present, seen from outside. Three things of it move while it
// trains: its work (CPU time and I/O of it and of all processes below it), its output and its
// steps. The pauses between movements are learned; one that lasts much longer than all before
// differs from the past. How sure that is: of n pauses that were all shorter, the next one is
// longer by chance one time in n + 1. Pure; time is an argument. Threads: none of its own.
#ifndef HOLDFAST_AGENT_CORE_ACTIVITY_MODEL_H_
#define HOLDFAST_AGENT_CORE_ACTIVITY_MODEL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::agent {

inline constexpr uint64_t kPausesMin = 20;       // before anything is said
inline constexpr int64_t kQuietFloorMs = 3'000;  // no limit is shorter
inline constexpr int64_t kLookGapMs =
    2'000;                                 // between two looks: more, and the watcher stood still
inline constexpr int kWorkPercentMin = 3;  // of one CPU: less is a process that waits
inline constexpr uint64_t kWorkBytesMin = 4096;  // of I/O between two looks

// Pauses of one thing that moves. Their 99th percentile is kept in steps of about a third.
class PauseModel {
 public:
  void Moved(int64_t now_ns);
  // Nobody looked for so long: that is no part of a pause.
  void Skip(int64_t ns) { moved_ns_ += moved_ns_ == 0 ? 0 : ns; }
  void Forget() { moved_ns_ = 0; }  // another process: what lies between is no pause of it
  // max(floor, 3 x the 99th percentile, 1.5 x the longest); 0 until enough was seen.
  int64_t LimitMs() const;
  int64_t LastedMs(int64_t now_ns) const;  // 0 before the first movement
  uint64_t pauses() const { return pauses_; }
  double Confidence() const;

 private:
  static constexpr size_t kBuckets = 64;
  int64_t Percentile99Ms() const;

  int64_t moved_ns_ = 0;
  int64_t longest_ms_ = 0;
  uint64_t pauses_ = 0;
  std::array<uint64_t, kBuckets> counts_ = {};
};

// One look at a rank. All but `cpu_ms` and `io_bytes` are compared for equality alone.
struct ActivityLook {
  uint64_t cpu_ms = 0;     // of it and all processes below it
  uint64_t io_bytes = 0;   // read and written by them
  uint64_t processes = 0;  // a digest of which they are
  uint64_t output = 0;     // of its log: changes when something is written
  uint64_t step = 0;
};

// It differs from its past.
struct Difference {
  std::string signal;  // "work", "output" or "steps"
  int64_t lasted_ms = 0;
  int64_t limit_ms = 0;
  uint64_t pauses = 0;
  double confidence = 0;
};

class ActivityModel {
 public:
  void Look(const ActivityLook& look, int64_t now_ns);
  void NewProcess();  // what was learned stays
  std::optional<Difference> Differs(int64_t now_ns) const;
  // It has moved often enough for its past to be known.
  bool Knows() const { return work_.pauses() >= kPausesMin; }

 private:
  bool Worked(const ActivityLook& look, int64_t now_ns) const;

  std::optional<ActivityLook> last_;
  int64_t last_ns_ = 0;
  PauseModel work_, output_, steps_;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_ACTIVITY_MODEL_H_
