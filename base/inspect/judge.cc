// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/judge.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace holdfast::inspect {
namespace {

std::string NameOf(const Looked& process) {
  return absl::StrCat(process.stat.pid, " (", process.stat.name, ")");
}

struct Chain {
  const LookedAt& all;
  WaitsFor end = WaitsFor::kUnknown;
  pid_t pid = 0;

  std::string Ends(pid_t at, WaitsFor what, std::string text) {
    pid = at;
    end = what;
    return text;
  }
};

std::string Sentence(pid_t pid, Chain* chain, int depth);

// What a process does that another one depends on; empty when that is not certain.
std::string Which(pid_t pid, Chain* chain, int depth) {
  const std::string rest = Sentence(pid, chain, depth + 1);
  return rest.empty() ? "" : absl::StrCat(", which ", rest);
}

// A wait that names no child ends with whichever ends first.
std::string ForChild(const Looked& process, Chain* chain, int depth) {
  std::vector<const Looked*> children;
  for (const auto& [pid, other] : chain->all) {
    if (other.stat.parent == process.stat.pid &&
        (process.wait->child == 0 || process.wait->child == pid))
      children.push_back(&other);
  }
  if (children.empty()) return "";
  chain->Ends(process.stat.pid, WaitsFor::kData, "");
  if (children.size() > 1)
    return absl::StrCat("waits for any of its ", children.size(), " children");
  return absl::StrCat("waits for its child ", NameOf(*children[0]),
                      Which(children[0]->stat.pid, chain, depth));
}

// Who can end a read of a pipe. Processes outside those looked at may have it open, too: said is
// only what was seen.
std::string OfWriters(const Looked& process, Chain* chain, int depth) {
  if (process.writers.size() == 1 && chain->all.count(process.writers[0]) == 1) {
    const pid_t writer = process.writers[0];
    return absl::StrCat(", open for writing in ", NameOf(chain->all.at(writer)),
                        Which(writer, chain, depth));
  }
  return process.writers.empty()
             ? ""
             : absl::StrCat(", open for writing in ", absl::StrJoin(process.writers, ", "));
}

// Not those of one machine: what is behind them may be a child.
bool IsNetwork(const std::string& target) {
  return target.rfind("tcp", 0) == 0 || target.rfind("udp", 0) == 0;
}

WaitsFor EndOf(const Wait& wait) {
  switch (wait.kind) {
    case WaitKind::kTime:
      return WaitsFor::kTime;
    case WaitKind::kPath:
      return WaitsFor::kData;
    case WaitKind::kDescriptor:
    case WaitKind::kPoll: {
      bool data = false;
      for (const std::string& target : wait.targets) {
        if (IsNetwork(target)) return WaitsFor::kPeer;
        data |= target.rfind('/', 0) == 0 || target.rfind("pipe:", 0) == 0;
      }
      return data ? WaitsFor::kData : WaitsFor::kUnknown;
    }
    default:
      return WaitsFor::kUnknown;
  }
}

std::string Blocked(const Looked& process, Chain* chain, int depth) {
  const Wait& wait = *process.wait;
  const pid_t pid = process.stat.pid;
  const bool stuck = process.stat.state == 'D';
  const std::string who = process.stat.threads > 1 ? "its main thread " : "";
  if (wait.kind == WaitKind::kChild) {
    const std::string text = ForChild(process, chain, depth);
    return text.empty() ? "" : who + text;
  }
  if (wait.kind == WaitKind::kOutside && !stuck) return "";
  chain->Ends(pid, stuck ? WaitsFor::kStorage : EndOf(wait), "");
  if (wait.kind == WaitKind::kTime) return absl::StrCat(who, "sleeps in ", WaitText(wait));
  std::string text = absl::StrCat(who, "waits in ", WaitText(wait));
  if (stuck && !wait.kernel.empty() && wait.kind != WaitKind::kOutside)
    absl::StrAppend(&text, ", uninterruptible, in the kernel's ", wait.kernel);
  return text + OfWriters(process, chain, depth);
}

std::string Sentence(pid_t pid, Chain* chain, int depth) {
  const auto found = chain->all.find(pid);
  if (found == chain->all.end() || depth > kChainMax) return "";
  const Looked& process = found->second;
  switch (process.stat.state) {
    case 'T':
      return chain->Ends(
          pid, WaitsFor::kStopped,
          absl::StrCat("is stopped by a signal (kill -CONT ", pid, " lets it go on)"));
    case 't':
      return chain->Ends(pid, WaitsFor::kStopped,
                         process.tracer == 0
                             ? "is held by a debugger"
                             : absl::StrCat("is held by a debugger, process ", process.tracer));
    case 'Z':
    case 'X':
      return chain->Ends(pid, WaitsFor::kEnded, "has ended, and nobody has taken its exit yet");
    default:
      break;
  }
  if (!process.wait.has_value() || !process.rates.has_value() || !process.rates->blocked) return "";
  return Blocked(process, chain, depth);
}

}  // namespace

Judgement JudgeChain(pid_t pid, const LookedAt& all) {
  Chain chain{all};
  Judgement judgement;
  judgement.text = Sentence(pid, &chain, 0);
  if (judgement.text.empty()) return judgement;
  judgement.end = chain.end;
  judgement.pid = chain.pid;
  return judgement;
}

std::string Judge(pid_t pid, const LookedAt& all) { return JudgeChain(pid, all).text; }

}  // namespace holdfast::inspect
