// SPDX-License-Identifier: Apache-2.0
// What `holdfast up` does about one daemon: pure decisions from what was seen and the time. As
// systemd's Restart=always and WatchdogSec= do elsewhere: what dies starts again after 100 ms, what
// stays stopped or silent for 1 s is killed and starts again. A daemon that keeps dying young is
// started ever more slowly.
#ifndef HOLDFAST_CLI_UP_CHILD_POLICY_H_
#define HOLDFAST_CLI_UP_CHILD_POLICY_H_

#include <cstdint>
#include <string>

namespace holdfast::cli {

inline constexpr int64_t kRestartMs = 100;
inline constexpr int64_t kRestartMsMax = 5'000;  // between two starts in a restart storm
inline constexpr int64_t kShortLifeMs =
    1'000;                                 // a shorter life doubles the pause before the next start
inline constexpr int kHopelessStarts = 5;  // of one that was never ready, each a short life
inline constexpr int64_t kStoppedMs = 1'000;
inline constexpr int64_t kSilentMs = 1'000;  // without WATCHDOG=1, once ready
inline constexpr int64_t kReadyMs = 60'000;  // from start to READY=1
inline constexpr int64_t kTermMs = 5'000;    // TERM to KILL; daemons stop within 2 s

// Exit codes of a daemon that say "starting me again cannot help": bad arguments, lock held.
inline constexpr int kExitBadArguments = 2;
inline constexpr int kExitLockHeld = 4;

struct ChildAction {
  enum Kind { kNone, kStart, kTerm, kKill, kGiveUp };
  Kind kind = kNone;
  std::string reason;           // for kKill and kGiveUp
  int64_t wake_ns = INT64_MAX;  // decide again at this time at the latest
};

// One daemon. Times are CLOCK_MONOTONIC in ns. Not thread-safe.
class ChildPolicy {
 public:
  // What was seen.
  void Started(int64_t now_ns);
  void Ready(int64_t now_ns);
  void Heard(int64_t now_ns);                  // WATCHDOG=1
  void Stopped(int64_t now_ns);                // WSTOPPED
  void Continued(int64_t now_ns);              // WCONTINUED
  void Exited(int64_t now_ns, int exit_code);  // < 0: by that signal
  void StartFailed(int64_t now_ns);
  // What is wanted: it shall end and stay ended.
  void Stop(int64_t now_ns);
  // The observer itself was not running for `ns`: what it did not hear in that time is nobody's
  // fault.
  void Shift(int64_t ns);

  // What to do now. kTerm and kKill are returned once for each cause; the caller carries them out.
  ChildAction Decide(int64_t now_ns, bool held);

  bool running() const { return state_ != State::kDown; }
  bool ready() const { return state_ == State::kReady; }
  bool ever_ready() const { return ever_ready_; }
  int restarts() const { return starts_ > 0 ? starts_ - 1 : 0; }
  int exit_code() const { return exit_code_; }

 private:
  enum class State { kDown, kStarting, kReady, kKilled };
  ChildAction DecideStop(int64_t now_ns);
  ChildAction DecideDown(int64_t now_ns, bool held) const;
  ChildAction Kill(std::string reason);

  State state_ = State::kDown;
  int64_t started_ns_ = 0;
  int64_t heard_ns_ = 0;
  int64_t stopped_ns_ = -1;
  int64_t next_start_ns_ = 0;  // 0: at once
  int64_t stop_ns_ = -1;       // when Stop was called
  bool term_sent_ = false;
  bool ever_ready_ = false;
  int starts_ = 0;
  int short_lives_ = 0;
  int exit_code_ = 0;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_CHILD_POLICY_H_
