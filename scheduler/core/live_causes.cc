// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/live_causes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "proto/modes.h"

namespace holdfast::sched {
namespace {

constexpr size_t kRanksTold = 8;
constexpr double kStoppedConfidence = 1.0;  // the kernel says so

bool WaitsForItself(const v1::Quiet& quiet) {
  return quiet.waits_for() == v1::Quiet::WAITS_FOR_DATA ||
         quiet.waits_for() == v1::Quiet::WAITS_FOR_STORAGE ||
         quiet.waits_for() == v1::Quiet::WAITS_FOR_STOPPED;
}

// One that is seen to do nothing but wait; without a word it may work, silently.
bool MayWaitForAPeer(const v1::Quiet& quiet) {
  if (quiet.what().empty()) return false;
  return quiet.waits_for() == v1::Quiet::WAITS_FOR_PEER ||
         quiet.waits_for() == v1::Quiet::WAITS_FOR_UNSPECIFIED;
}

v1::FaultClass ClassOf(const v1::Quiet& quiet) {
  switch (quiet.waits_for()) {
    case v1::Quiet::WAITS_FOR_STORAGE:
      return v1::IO_STUCK;
    case v1::Quiet::WAITS_FOR_DATA:
    case v1::Quiet::WAITS_FOR_STOPPED:
      return v1::DATA_STUCK;
    default:
      return v1::HOST_STUCK;
  }
}

std::string Seconds(int64_t ms) {
  return absl::StrFormat("%.1f s", static_cast<double>(ms) / 1000.0);
}

std::string Past(const LiveRank& rank) {
  const v1::Quiet& quiet = *rank.quiet;
  const std::string nothing = quiet.signal() == "work"     ? "no work (CPU, I/O)"
                              : quiet.signal() == "output" ? "no output"
                                                           : "no step";
  std::string text = absl::StrCat(
      "rank ", rank.rank, ": ", nothing, " for ", Seconds(quiet.lasted_ms()), "; learned limit ",
      Seconds(quiet.limit_ms()), " from ", quiet.pauses_seen(), " pauses");
  if (!quiet.python().empty())
    absl::StrAppend(&text, "; python ", quiet.pid(), ": ", quiet.python());
  return text;
}

std::string Told(const std::vector<const LiveRank*>& named, const std::string& rest) {
  if (named.size() == 1) return absl::StrCat("rank ", named[0]->rank, " on ", named[0]->node, rest);
  std::vector<uint32_t> some;
  for (size_t i = 0; i < std::min(named.size(), kRanksTold); ++i) some.push_back(named[i]->rank);
  return absl::StrCat(named.size(), " ranks (", absl::StrJoin(some, ", "),
                      some.size() < named.size() ? ", ..." : "", "): rank ", named[0]->rank, " on ",
                      named[0]->node, rest);
}

LiveCause CauseOf(const std::vector<const LiveRank*>& named, const char* cause) {
  LiveCause out;
  out.cause = cause;
  for (const LiveRank* rank : named) out.ranks.push_back(rank->rank);
  out.node = named[0]->node;
  return out;
}

// Who is to be named, and whether others can be seen to wait.
struct Sides {
  std::vector<const LiveRank*> stuck, asleep;
  bool others_wait = false;
};

Sides Divide(const std::vector<LiveRank>& ranks) {
  Sides sides;
  for (const LiveRank& rank : ranks) {
    if (!rank.quiet.has_value()) continue;
    if (WaitsForItself(*rank.quiet)) {
      sides.stuck.push_back(&rank);
    } else if (rank.quiet->waits_for() == v1::Quiet::WAITS_FOR_TIME) {
      sides.asleep.push_back(&rank);
    } else {
      sides.others_wait |= MayWaitForAPeer(*rank.quiet);
    }
  }
  return sides;
}

}  // namespace

std::optional<LiveCause> FindStopped(const std::vector<LiveRank>& ranks) {
  std::vector<const LiveRank*> named;
  for (const LiveRank& rank : ranks) {
    if (rank.stopped_ns > 0) named.push_back(&rank);
  }
  if (named.empty()) return std::nullopt;
  LiveCause out = CauseOf(named, proto::kCauseStopped);
  out.fault_class = v1::PROCESS_STOPPED;
  out.what = Told(named, " was stopped (SIGSTOP or a freezer)");
  out.confidence = kStoppedConfidence;
  out.begin_ns = named[0]->stopped_ns;
  for (const LiveRank* rank : named) out.begin_ns = std::min(out.begin_ns, rank->stopped_ns);
  return out;
}

std::optional<LiveCause> FindHang(const std::vector<LiveRank>& ranks, int64_t now_ns) {
  const Sides sides = Divide(ranks);
  const bool sleeper = sides.stuck.empty() && sides.others_wait;
  const std::vector<const LiveRank*>& named = sleeper ? sides.asleep : sides.stuck;
  if (named.empty()) return std::nullopt;
  const v1::Quiet& first = *named[0]->quiet;
  LiveCause out = CauseOf(named, proto::kCauseHang);
  out.fault_class = ClassOf(first);
  out.what = Told(named, absl::StrCat(" ", first.what()));
  if (!first.python().empty()) absl::StrAppend(&out.what, "; in python: ", first.python());
  out.begin_ns = now_ns;
  std::vector<std::string> past;
  // Several stuck at once share a cause or hide it: each of them may be the wrong one.
  out.confidence = 1.0 / static_cast<double>(named.size());
  for (const LiveRank* rank : named) {
    if (past.size() < kRanksTold) past.push_back(Past(*rank));
    out.begin_ns = std::min(out.begin_ns, now_ns - rank->quiet->lasted_ms() * kNsPerMs);
    out.limit_ms = std::max(out.limit_ms, rank->quiet->limit_ms());
  }
  out.confidence *= first.confidence();
  out.evidence = absl::StrJoin(past, "; ");
  return out;
}

int64_t CostMs(const RestartCost& cost) {
  const int64_t work = cost.points_visible
                           ? cost.since_point_ms
                           : std::clamp(cost.attempt_age_ms, kUnseenWorkMsMin, kUnseenWorkMsMax);
  return work + cost.restart_ms;
}

bool IsDue(const LiveCause& cause, int64_t cost_ms, int64_t now_ns) {
  const int64_t lost_ms = (now_ns - cause.begin_ns) / kNsPerMs;
  return lost_ms >= std::max(cost_ms, cause.limit_ms);
}

}  // namespace holdfast::sched
