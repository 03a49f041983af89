// SPDX-License-Identifier: Apache-2.0
// Two clocks in one interface: WallNs() for stamps that people read (it may jump), MonoNs() for
// every timeout and every duration. Decision code takes `now` as an argument instead of a Clock;
// only loops at the edge hold one.
#ifndef HOLDFAST_BASE_CLOCK_H_
#define HOLDFAST_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace holdfast {

inline constexpr int64_t kNsPerUs = 1000;
inline constexpr int64_t kNsPerMs = 1000 * 1000;
inline constexpr int64_t kNsPerSec = 1000 * 1000 * 1000;

// Thread-safe. Monotonic times mean nothing on another machine: send ages, never stamps.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t MonoNs() const = 0;  // CLOCK_MONOTONIC
  virtual int64_t WallNs() const = 0;  // CLOCK_REALTIME, since 1970
};

// The operating system's clocks.
class SystemClock final : public Clock {
 public:
  int64_t MonoNs() const override;
  int64_t WallNs() const override;
};

// A clock that moves only when told to; for tests and the simulator. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t mono_ns = kNsPerSec, int64_t wall_ns = 1'700'000'000 * kNsPerSec)
      : mono_ns_(mono_ns), wall_ns_(wall_ns) {}
  int64_t MonoNs() const override { return mono_ns_.load(std::memory_order_acquire); }
  int64_t WallNs() const override { return wall_ns_.load(std::memory_order_acquire); }
  void AdvanceNs(int64_t ns) {
    mono_ns_.fetch_add(ns, std::memory_order_acq_rel);
    wall_ns_.fetch_add(ns, std::memory_order_acq_rel);
  }
  void StepWallNs(int64_t ns) { wall_ns_.fetch_add(ns, std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> mono_ns_;
  std::atomic<int64_t> wall_ns_;
};

}  // namespace holdfast

#endif  // HOLDFAST_BASE_CLOCK_H_
