// SPDX-License-Identifier: Apache-2.0
#include "cli/up/child_policy.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace holdfast::cli {
namespace {

constexpr int kDoublingsMax = 16;

ChildAction Later(int64_t wake_ns) {
  ChildAction action;
  action.wake_ns = wake_ns;
  return action;
}

ChildAction Now(ChildAction::Kind kind, std::string reason = "") {
  ChildAction action;
  action.kind = kind;
  action.reason = std::move(reason);
  return action;
}

}  // namespace

void ChildPolicy::Started(int64_t now_ns) {
  state_ = State::kStarting;
  started_ns_ = now_ns;
  heard_ns_ = now_ns;
  stopped_ns_ = -1;
  ++starts_;
}

void ChildPolicy::Ready(int64_t now_ns) {
  if (state_ != State::kStarting) return;
  state_ = State::kReady;
  ever_ready_ = true;
  heard_ns_ = now_ns;
}

void ChildPolicy::Heard(int64_t now_ns) { heard_ns_ = std::max(heard_ns_, now_ns); }

void ChildPolicy::Stopped(int64_t now_ns) {
  if (stopped_ns_ < 0) stopped_ns_ = now_ns;
}

void ChildPolicy::Continued(int64_t now_ns) {
  stopped_ns_ = -1;
  heard_ns_ = now_ns;  // it could not speak while it was stopped
}

void ChildPolicy::Exited(int64_t now_ns, int exit_code) {
  const bool short_life = now_ns - started_ns_ < kShortLifeMs * kNsPerMs;
  short_lives_ = short_life ? std::min(short_lives_ + 1, kDoublingsMax) : 0;
  const int64_t pause_ms = std::min(kRestartMsMax, kRestartMs << std::max(0, short_lives_ - 1));
  state_ = State::kDown;
  stopped_ns_ = -1;
  exit_code_ = exit_code;
  next_start_ns_ = now_ns + pause_ms * kNsPerMs;
}

void ChildPolicy::StartFailed(int64_t now_ns) {
  started_ns_ = now_ns;
  ++starts_;
  Exited(now_ns, 127);
}

void ChildPolicy::Stop(int64_t now_ns) {
  if (stop_ns_ < 0) stop_ns_ = now_ns;
}

void ChildPolicy::Shift(int64_t ns) {
  heard_ns_ += ns;
  started_ns_ += ns;
  if (stopped_ns_ >= 0) stopped_ns_ += ns;
}

ChildAction ChildPolicy::Kill(std::string reason) {
  state_ = State::kKilled;
  return Now(ChildAction::kKill, std::move(reason));
}

ChildAction ChildPolicy::DecideStop(int64_t now_ns) {
  if (state_ == State::kDown || state_ == State::kKilled) return {};
  if (!term_sent_) {
    term_sent_ = true;
    return Now(ChildAction::kTerm);
  }
  const int64_t end = stop_ns_ + kTermMs * kNsPerMs;
  return now_ns >= end ? Kill(absl::StrCat("still runs ", kTermMs, " ms after SIGTERM"))
                       : Later(end);
}

ChildAction ChildPolicy::DecideDown(int64_t now_ns, bool held) const {
  if (!ever_ready_ && starts_ > 0 &&
      (exit_code_ == kExitBadArguments || exit_code_ == kExitLockHeld)) {
    return Now(ChildAction::kGiveUp, absl::StrCat("refused to start (exit code ", exit_code_, ")"));
  }
  if (!ever_ready_ && short_lives_ >= kHopelessStarts) {
    return Now(ChildAction::kGiveUp,
               absl::StrCat("ended ", short_lives_, " times before it was ready (",
                            exit_code_ < 0 ? "signal " : "exit code ", std::abs(exit_code_), ")"));
  }
  if (held) return {};
  return now_ns >= next_start_ns_ ? Now(ChildAction::kStart) : Later(next_start_ns_);
}

ChildAction ChildPolicy::Decide(int64_t now_ns, bool held) {
  if (stop_ns_ >= 0) return DecideStop(now_ns);
  if (state_ == State::kDown) return DecideDown(now_ns, held);
  if (state_ == State::kKilled) return {};
  if (stopped_ns_ >= 0) {
    const int64_t end = stopped_ns_ + kStoppedMs * kNsPerMs;
    return now_ns >= end ? Kill(absl::StrCat("stopped for ", kStoppedMs, " ms")) : Later(end);
  }
  if (state_ == State::kStarting) {
    const int64_t end = started_ns_ + kReadyMs * kNsPerMs;
    return now_ns >= end ? Kill(absl::StrCat("not ready ", kReadyMs, " ms after its start"))
                         : Later(end);
  }
  const int64_t end = heard_ns_ + kSilentMs * kNsPerMs;
  return now_ns >= end ? Kill(absl::StrCat("silent for ", kSilentMs, " ms")) : Later(end);
}

}  // namespace holdfast::cli
