// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/judge.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace holdfast::inspect {
namespace {

std::string NameOf(const Looked& process) {
  return absl::StrCat(process.stat.pid, " (", process.stat.name, ")");
}

// One process in a chain of waits.
struct Link {
  std::string text;  // empty: nothing is certain
  WaitsFor end = WaitsFor::kUnknown;
  pid_t pid = 0;
  bool circle = false;  // it waits for one that waits for it: the cause lies elsewhere
};

// A walk down the chains from one process. Each process is judged once, whoever waits for it: a
// hundred loaders that have each other's pipes open would else be judged in every order.
struct Walk {
  const LookedAt& all;
  std::map<pid_t, Link> judged = {};
  std::vector<pid_t> path = {};  // from the first process to the one that is being judged
};

Link LinkOf(pid_t pid, Walk* walk);

std::string Which(const Link& link) {
  return link.text.empty() ? "" : absl::StrCat(", which ", link.text);
}

bool IsCertain(const Link& link) {
  return !link.text.empty() && link.end != WaitsFor::kUnknown && link.end != WaitsFor::kPeer;
}

// What a wait ends at that any of several processes can end. Those that wait for the waiting one
// itself will not. Of the others each must be certain to be stuck: one that works, or waits for a
// peer, may end the wait at any moment.
Link EndOfAny(const std::vector<Link>& links, pid_t pid) {
  const Link* stuck = nullptr;
  size_t others = 0, certain = 0;
  for (const Link& link : links) {
    if (link.circle) continue;
    ++others;
    if (!IsCertain(link)) continue;
    ++certain;
    if (stuck == nullptr) stuck = &link;
  }
  if (others == 0) return {"", WaitsFor::kUnknown, pid, /*circle=*/!links.empty()};
  if (certain == others) return *stuck;
  if (others == 1) {
    for (const Link& link : links) {
      if (!link.circle) return {"", link.end, pid, false};
    }
  }
  return {"", WaitsFor::kUnknown, pid, false};
}

// A wait that names no child ends with whichever ends first.
Link ForChild(const Looked& process, const std::string& how, Walk* walk) {
  std::vector<const Looked*> children;
  std::vector<Link> links;
  for (const auto& [pid, other] : walk->all) {
    if (other.stat.parent != process.stat.pid) continue;
    if (process.wait->child != 0 && process.wait->child != pid) continue;
    children.push_back(&other);
    links.push_back(LinkOf(pid, walk));
  }
  if (children.empty()) return {"", WaitsFor::kUnknown, process.stat.pid, false};
  Link link = EndOfAny(links, process.stat.pid);
  link.text =
      children.size() > 1
          ? absl::StrCat("waits", how, " for any of its ", children.size(), " children")
          : absl::StrCat("waits", how, " for its child ", NameOf(*children[0]), Which(links[0]));
  return link;
}

// Who can end a read of a pipe. Processes outside those looked at may have it open, too.
Link OfWriters(const Looked& process, const std::string& text, Walk* walk) {
  std::vector<Link> links;
  for (const pid_t writer : process.writers) links.push_back(LinkOf(writer, walk));
  Link link = EndOfAny(links, process.stat.pid);
  const LookedAt& all = walk->all;
  link.text = text;
  if (process.writers.size() == 1 && all.count(process.writers[0]) == 1) {
    absl::StrAppend(&link.text, ", open for writing in ", NameOf(all.at(process.writers[0])),
                    Which(links[0]));
  } else if (!process.writers.empty()) {
    absl::StrAppend(&link.text, ", open for writing in ", absl::StrJoin(process.writers, ", "));
  }
  // The one that is stuck itself says most.
  for (size_t i = 0; links.size() > 1 && i < links.size(); ++i) {
    if (!IsCertain(link) || links[i].pid != link.pid || process.writers[i] != link.pid) continue;
    absl::StrAppend(&link.text, ", of which ", NameOf(all.at(link.pid)), " ", links[i].text);
  }
  return link;
}

// Not those of one machine: what is behind them may be a child.
bool IsNetwork(const std::string& target) {
  return target.rfind("tcp", 0) == 0 || target.rfind("udp", 0) == 0;
}

WaitsFor EndOf(const Wait& wait) {
  if (wait.kind == WaitKind::kTime) return WaitsFor::kTime;
  if (wait.kind == WaitKind::kPath) return WaitsFor::kData;
  if (wait.kind != WaitKind::kDescriptor && wait.kind != WaitKind::kPoll) return WaitsFor::kUnknown;
  for (const std::string& target : wait.targets) {
    if (IsNetwork(target)) return WaitsFor::kPeer;
  }
  // Of several any may come; who writes into a pipe without a name is to be seen from its writers.
  const bool file = wait.targets.size() == 1 && wait.targets[0].rfind('/', 0) == 0;
  return file ? WaitsFor::kData : WaitsFor::kUnknown;
}

Link Blocked(const Looked& process, Walk* walk) {
  const Wait& wait = *process.wait;
  const pid_t pid = process.stat.pid;
  const bool stuck = process.stat.state == 'D';
  const std::string how = process.stat.threads > 1 ? ", in its main thread," : "";
  if (wait.kind == WaitKind::kChild) return ForChild(process, how, walk);
  if (wait.kind == WaitKind::kOutside && !stuck) return {"", WaitsFor::kUnknown, pid, false};
  if (wait.kind == WaitKind::kTime)
    return {absl::StrCat("sleeps", how, " in ", WaitText(wait)), WaitsFor::kTime, pid, false};
  std::string text = absl::StrCat("waits", how, " in ", WaitText(wait));
  if (stuck && !wait.kernel.empty() && wait.kind != WaitKind::kOutside)
    absl::StrAppend(&text, ", uninterruptible, in the kernel's ", wait.kernel);
  if (!process.writers.empty() && !stuck) return OfWriters(process, text, walk);
  return {text, stuck ? WaitsFor::kStorage : EndOf(wait), pid, false};
}

Link JudgeOne(const Looked& process, Walk* walk) {
  const pid_t pid = process.stat.pid;
  switch (process.stat.state) {
    case 'T':
      return {absl::StrCat("is stopped by a signal (kill -CONT ", pid, " lets it go on)"),
              WaitsFor::kStopped, pid, false};
    case 't':
      return {process.tracer == 0 ? "is held by a debugger"
                                  : absl::StrCat("is held by a debugger, process ", process.tracer),
              WaitsFor::kStopped, pid, false};
    case 'Z':
    case 'X':
      return {"has ended, and nobody has taken its exit yet", WaitsFor::kEnded, pid, false};
    default:
      break;
  }
  if (!process.wait.has_value() || !process.rates.has_value() || !process.rates->blocked)
    return {"", WaitsFor::kUnknown, pid, false};
  return Blocked(process, walk);
}

Link LinkOf(pid_t pid, Walk* walk) {
  if (std::find(walk->path.begin(), walk->path.end(), pid) != walk->path.end())
    return {"", WaitsFor::kUnknown, pid, /*circle=*/true};
  if (const auto known = walk->judged.find(pid); known != walk->judged.end()) return known->second;
  const auto found = walk->all.find(pid);
  if (found == walk->all.end() || walk->path.size() > kChainMax) return {};
  walk->path.push_back(pid);
  const Link link = JudgeOne(found->second, walk);
  walk->path.pop_back();
  walk->judged[pid] = link;
  return link;
}

}  // namespace

Judgement JudgeChain(pid_t pid, const LookedAt& all) {
  Walk walk{all};
  const Link link = LinkOf(pid, &walk);
  if (link.text.empty()) return {};
  return {link.text, link.end, link.pid};
}

std::string Judge(pid_t pid, const LookedAt& all) { return JudgeChain(pid, all).text; }

}  // namespace holdfast::inspect
