// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/judge.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace holdfast::inspect {
namespace {

std::string NameOf(const Looked& process) {
  return absl::StrCat(process.stat.pid, " (", process.stat.name, ")");
}

std::string Sentence(pid_t pid, const LookedAt& all, int depth);

// What a process does that another one depends on; empty when that is not certain.
std::string Which(pid_t pid, const LookedAt& all, int depth) {
  const std::string rest = Sentence(pid, all, depth + 1);
  return rest.empty() ? "" : absl::StrCat(", which ", rest);
}

// A wait that names no child ends with whichever ends first.
std::string ForChild(const Looked& process, const LookedAt& all, int depth) {
  std::vector<const Looked*> children;
  for (const auto& [pid, other] : all) {
    if (other.stat.parent == process.stat.pid &&
        (process.wait->child == 0 || process.wait->child == pid))
      children.push_back(&other);
  }
  if (children.empty()) return "";
  if (children.size() > 1)
    return absl::StrCat("waits for any of its ", children.size(), " children");
  return absl::StrCat("waits for its child ", NameOf(*children[0]),
                      Which(children[0]->stat.pid, all, depth));
}

// Who can end a read of a pipe. Processes outside those looked at may have it open, too: said is
// only what was seen.
std::string OfWriters(const Looked& process, const LookedAt& all, int depth) {
  if (process.writers.size() == 1 && all.count(process.writers[0]) == 1) {
    const pid_t writer = process.writers[0];
    return absl::StrCat(", open for writing in ", NameOf(all.at(writer)),
                        Which(writer, all, depth));
  }
  return process.writers.empty()
             ? ""
             : absl::StrCat(", open for writing in ", absl::StrJoin(process.writers, ", "));
}

std::string Blocked(const Looked& process, const LookedAt& all, int depth) {
  const Wait& wait = *process.wait;
  const std::string who = process.stat.threads > 1 ? "its main thread " : "";
  if (wait.kind == WaitKind::kChild) {
    const std::string text = ForChild(process, all, depth);
    return text.empty() ? "" : who + text;
  }
  if (wait.kind == WaitKind::kTime) return absl::StrCat(who, "sleeps in ", WaitText(wait));
  if (wait.kind == WaitKind::kOutside && process.stat.state != 'D') return "";
  std::string text = absl::StrCat(who, "waits in ", WaitText(wait));
  if (process.stat.state == 'D' && !wait.kernel.empty() && wait.kind != WaitKind::kOutside)
    absl::StrAppend(&text, ", uninterruptible, in the kernel's ", wait.kernel);
  return text + OfWriters(process, all, depth);
}

std::string Sentence(pid_t pid, const LookedAt& all, int depth) {
  const auto found = all.find(pid);
  if (found == all.end() || depth > kChainMax) return "";
  const Looked& process = found->second;
  switch (process.stat.state) {
    case 'T':
      return absl::StrCat("is stopped by a signal (kill -CONT ", pid, " lets it go on)");
    case 't':
      return process.tracer == 0 ? "is held by a debugger"
                                 : absl::StrCat("is held by a debugger, process ", process.tracer);
    case 'Z':
    case 'X':
      return "has ended, and nobody has taken its exit yet";
    default:
      break;
  }
  if (!process.wait.has_value() || !process.rates.has_value() || !process.rates->blocked) return "";
  return Blocked(process, all, depth);
}

}  // namespace

std::string Judge(pid_t pid, const LookedAt& all) { return Sentence(pid, all, 0); }

}  // namespace holdfast::inspect
