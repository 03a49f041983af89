// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/first_cause.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/rank/exit_code.h"

namespace holdfast::sched {
namespace {

// Two agents measure ages independently; a cause may look this much later than its first victim.
constexpr int64_t kSkewNs = 500 * kNsPerMs;

bool IsPositive(const RankFailure& f) {
  switch (f.kind) {
    case FailureKind::kExitedEarly:
    case FailureKind::kStopped:
    case FailureKind::kHung:
    case FailureKind::kVanished:
    case FailureKind::kNodeLost:
    case FailureKind::kStartFailed:
    case FailureKind::kStoreLost:
    case FailureKind::kSaveFailed:
      return true;
    case FailureKind::kExit:
      // An uncaught exception about a dead peer ends in SIGABRT: that is an echo, not evidence.
      return f.oom_killed ||
             (f.exit_code < 0 && f.exit_code != -SIGABRT && f.exit_code != -SIGTERM);
  }
  return false;
}

// XIDs that an application brings about by itself (an illegal access, a stopped kernel).
bool IsApplicationXid(const std::string& reason) {
  const std::string lower = [&] {
    std::string s = reason;
    for (char& c : s) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return s;
  }();
  const size_t at = lower.find("xid");
  if (at == std::string::npos) return false;
  const size_t digit = lower.find_first_of("0123456789", at);
  if (digit == std::string::npos || digit > at + 5) return false;
  const int xid = std::atoi(lower.c_str() + digit);
  return xid == 13 || xid == 31 || xid == 43 || xid == 45;
}

// What the rank should have started from does not verify.
bool FoundDamage(const RankFailure& f) {
  return f.start_step > 0 && f.step == 0 && f.kind == FailureKind::kExit &&
         f.exit_code == rank::kExitCorrupt;
}

// It says itself that it only met the end of a peer.
bool IsVictim(const RankFailure& f) {
  return f.kind == FailureKind::kExit && f.exit_code == rank::kExitPeerLost;
}

v1::FaultClass Classify(const RankFailure& f, bool first_step_ever) {
  if (f.kind == FailureKind::kNodeLost) return v1::NODE_LOST;
  if (f.kind == FailureKind::kSaveFailed) return v1::STORAGE;
  if (f.kind == FailureKind::kStopped) return v1::PROCESS_STOPPED;
  if (f.kind == FailureKind::kHung) return f.hung_class;
  if (f.oom_killed) return v1::OUT_OF_MEMORY;
  if (IsApplicationXid(f.device_reason)) return v1::APPLICATION;
  if (FoundDamage(f)) return v1::CORRUPT_CHECKPOINT;
  if (f.kind == FailureKind::kStartFailed && f.start_is_program) return v1::USER_PROGRAM;
  if (IsOwnEnd(f) && !first_step_ever) return v1::USER_PROGRAM;
  return v1::PROCESS_DIED;
}

std::string Sentence(const RankFailure& f, const std::vector<uint32_t>& ranks) {
  const std::string who =
      ranks.size() == 1 ? absl::StrCat("rank ", ranks[0]) : absl::StrCat(ranks.size(), " ranks");
  const std::string where = f.node.empty() ? "" : absl::StrCat(" on ", f.node);
  const std::string step = f.step > 0    ? absl::StrCat(" after step ", f.step)
                           : f.has_marks ? " before its first step of this attempt"
                                         : "";
  switch (f.kind) {
    case FailureKind::kNodeLost:
      return absl::StrCat("node ", f.node, " was lost with ", who, step);
    case FailureKind::kStopped:
      return absl::StrCat(who, where, " was stopped (SIGSTOP or a freezer)", step);
    case FailureKind::kExitedEarly:
      return absl::StrCat(who, where, " exited with 0", step, " while its peers still had work");
    case FailureKind::kStartFailed:
      return absl::StrCat(who, where,
                          " could not be started: ", f.detail.empty() ? f.message : f.detail);
    case FailureKind::kVanished:
      return absl::StrCat(who, where, " died with its keeper", step);
    case FailureKind::kHung:
    case FailureKind::kStoreLost:
    case FailureKind::kSaveFailed:
      return f.detail;
    case FailureKind::kExit:
      break;
  }
  if (FoundDamage(f)) return absl::StrCat(who, where, " found that what it starts from is damaged");
  if (f.oom_killed) return absl::StrCat(who, where, " ran out of memory and was killed", step);
  return absl::StrCat(who, where, " ended with ", DescribeExit(f.exit_code), step);
}

// Ranks that share the root's fate by the same event: a lost node or a dead keeper takes several at
// once.
bool SameEvent(const RankFailure& root, const RankFailure& f) {
  if (f.rank == root.rank) return true;
  if (f.kind != root.kind || f.node != root.node) return false;
  return root.kind == FailureKind::kNodeLost || root.kind == FailureKind::kVanished ||
         root.kind == FailureKind::kHung;
}

}  // namespace

bool IsOwnEnd(const RankFailure& f) {
  if (f.kind == FailureKind::kStartFailed) return f.start_is_program;
  if (f.kind != FailureKind::kExit || f.oom_killed || FoundDamage(f) || IsVictim(f)) return false;
  if (f.exit_code > 0) return true;
  switch (-f.exit_code) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
      return true;
    default:
      return false;
  }
}

std::string DescribeExit(int32_t exit_code) {
  if (exit_code >= 0) return absl::StrCat("exit code ", exit_code);
  const char* name = ::sigdescr_np(-exit_code);
  return absl::StrCat("signal ", -exit_code, name == nullptr ? "" : absl::StrCat(" (", name, ")"));
}

int32_t ShellExitCode(int32_t exit_code) { return exit_code >= 0 ? exit_code : 128 - exit_code; }

Cause NameFirstCause(std::vector<RankFailure> failures, bool first_step_ever) {
  std::sort(failures.begin(), failures.end(), [](const RankFailure& a, const RankFailure& b) {
    return a.at_mono_ns != b.at_mono_ns ? a.at_mono_ns < b.at_mono_ns : a.rank < b.rank;
  });
  const int64_t first_ns = failures.front().at_mono_ns;
  // What a rank itself shows goes before the loss of a node: that is only known by silence, so its
  // time is an estimate and can look older than a kill that it has nothing to do with.
  const RankFailure* root = nullptr;
  for (const bool lost_nodes : {false, true}) {
    const int64_t allowed_ns = lost_nodes ? kVictimWindowMs * kNsPerMs : kSkewNs;
    for (const RankFailure& f : failures) {
      const bool considered = IsPositive(f) && (f.kind == FailureKind::kNodeLost) == lost_nodes;
      if (root == nullptr && considered && f.at_mono_ns - first_ns <= allowed_ns) root = &f;
    }
  }
  for (const RankFailure& f : failures) {
    const bool in_time = f.at_mono_ns - first_ns <= kVictimWindowMs * kNsPerMs;
    if (root == nullptr && in_time && !IsVictim(f)) root = &f;
  }
  if (root == nullptr) root = &failures.front();
  Cause cause;
  cause.root = *root;
  cause.node = root->node;
  cause.fault_class = Classify(*root, first_step_ever);
  cause.own_program = IsOwnEnd(*root);
  for (const RankFailure& f : failures) {
    if (f.kind == FailureKind::kSaveFailed) continue;  // names no rank
    if (f.kind == FailureKind::kStoreLost) {           // nor does this
      cause.victims.push_back(f.rank);
      continue;
    }
    // Another lost node is nobody's victim: it is an incident of its own.
    if (f.kind == FailureKind::kNodeLost && !SameEvent(*root, f)) continue;
    if (SameEvent(*root, f)) {
      cause.ranks.push_back(f.rank);
    } else if (f.at_mono_ns - root->at_mono_ns <= kVictimWindowMs * kNsPerMs) {
      cause.victims.push_back(f.rank);
    } else {
      cause.ranks.push_back(f.rank);  // too late to be an echo: it failed on its own
    }
  }
  std::sort(cause.ranks.begin(), cause.ranks.end());
  std::sort(cause.victims.begin(), cause.victims.end());
  std::vector<uint32_t> of_root;
  for (const RankFailure& f : failures) {
    if (SameEvent(*root, f)) of_root.push_back(f.rank);
  }
  cause.what = Sentence(*root, of_root);
  cause.detail = !root->message.empty()       ? root->message
                 : !root->stderr_tail.empty() ? root->stderr_tail
                                              : root->detail;
  return cause;
}

}  // namespace holdfast::sched
