// SPDX-License-Identifier: Apache-2.0
#include "cli/look/ranks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"

namespace holdfast::cli {
namespace {

using inspect::ProcessStat;
using inspect::ProcFs;

constexpr char kKeeperName[] = "holdfast-keeper";
constexpr char kAgentName[] = "holdfast-agent";
constexpr char kSlotName[] = "HOLDFAST_KEEPER_RANK";
constexpr char kStandbyScript[] = "/holdfast-standby.py";
constexpr int kStandbyGoFd = 3;  // docs/formats/rank.md: open until it becomes a rank

// The word behind `flag`; "" without one.
std::string FlagOf(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  return at == arguments.end() || at + 1 == arguments.end() ? "" : *(at + 1);
}

struct Keeper {
  pid_t pid = 0;
  std::string node_state;  // <node state> of <node state>/keepers/j-42
};

std::vector<Keeper> KeepersOf(const ProcFs& proc, const std::vector<ProcessStat>& all,
                              const std::string& job) {
  std::vector<Keeper> keepers;
  const std::string end = absl::StrCat("/keepers/", job);
  for (const ProcessStat& process : all) {
    if (process.name != kKeeperName) continue;
    const std::string directory = FlagOf(proc.Arguments(process.pid), "--dir");
    if (absl::EndsWith(directory, end))
      keepers.push_back({process.pid, directory.substr(0, directory.size() - end.size())});
  }
  return keepers;
}

// An agent that runs names its node. One that is away, or was started with a relative path, does
// not speak against its keeper.
bool IsOfAnotherNode(const ProcFs& proc, const std::vector<ProcessStat>& all, const Keeper& keeper,
                     const std::string& node) {
  return std::any_of(all.begin(), all.end(), [&](const ProcessStat& process) {
    if (process.name != kAgentName) return false;
    const std::vector<std::string> arguments = proc.Arguments(process.pid);
    return FlagOf(arguments, "--state") == keeper.node_state && FlagOf(arguments, "--node") != node;
  });
}

std::vector<Keeper> OnNode(const ProcFs& proc, const std::vector<ProcessStat>& all,
                           std::vector<Keeper> keepers, const std::string& node,
                           const std::string& address) {
  absl::string_view socket = address;
  const bool local = absl::ConsumePrefix(&socket, "unix:");
  const std::string state = DirName(std::string(socket));
  const auto elsewhere = [&](const Keeper& keeper) {
    return local ? keeper.node_state != state : IsOfAnotherNode(proc, all, keeper, node);
  };
  keepers.erase(std::remove_if(keepers.begin(), keepers.end(), elsewhere), keepers.end());
  return keepers;
}

// The rank in "<attempt>.<rank>".
std::optional<uint32_t> RankIn(const std::string& slot) {
  const std::vector<std::string> parts = absl::StrSplit(slot, '.');
  uint64_t attempt = 0;
  uint32_t rank = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &attempt) ||
      !absl::SimpleAtoi(parts[1], &rank))
    return std::nullopt;
  return rank;
}

// Its end of the keeper's pipe is open as long as it waits; the script that it becomes may open
// anything under that number, but the keeper has no other pipe to it than its output.
bool IsWaitingStandby(const ProcFs& proc, pid_t pid, pid_t keeper) {
  const std::vector<std::string> arguments = proc.Arguments(pid);
  const bool standby = std::any_of(arguments.begin(), arguments.end(), [](const std::string& word) {
    return absl::EndsWith(word, kStandbyScript);
  });
  if (!standby) return false;
  const auto pipe = proc.ReadLink(pid, absl::StrCat("fd/", kStandbyGoFd));
  const auto output = proc.ReadLink(pid, "fd/1");
  const auto descriptors = proc.Descriptors(keeper);
  if (!pipe.ok() || !descriptors.ok() || (output.ok() && *output == *pipe)) return false;
  return std::any_of(descriptors->begin(), descriptors->end(), [&](int fd) {
    const auto link = proc.ReadLink(keeper, absl::StrCat("fd/", fd));
    return link.ok() && *link == *pipe;
  });
}

// A child of a keeper that is no waiting standby.
struct Child {
  ProcessStat stat;
  uint32_t rank = 0;
};

struct Children {
  std::vector<Child> known;
  int hidden = 0;  // another user's
};

Children ChildrenOf(const ProcFs& proc, const std::vector<ProcessStat>& all, pid_t keeper) {
  Children children;
  for (const ProcessStat& process : all) {
    if (process.parent != keeper) continue;
    const auto slot = proc.EnvironValue(process.pid, kSlotName);
    children.hidden += absl::IsPermissionDenied(slot.status()) ? 1 : 0;
    const auto rank = slot.ok() ? RankIn(*slot) : std::nullopt;
    if (rank && !IsWaitingStandby(proc, process.pid, keeper))
      children.known.push_back({process, *rank});
  }
  // The rank started before what it started.
  std::sort(children.known.begin(), children.known.end(), [](const Child& a, const Child& b) {
    return std::make_pair(a.stat.start_ticks, a.stat.pid) <
           std::make_pair(b.stat.start_ticks, b.stat.pid);
  });
  return children;
}

void AddTree(const std::vector<ProcessStat>& all, const ProcessStat& root, bool with_root,
             std::vector<ProcessStat>* out) {
  if (with_root) out->push_back(root);
  const std::vector<ProcessStat> below = inspect::Below(all, root.pid);
  out->insert(out->end(), below.begin(), below.end());
}

std::string HiddenText(int hidden) {
  return absl::StrCat(hidden, " of its processes here belong to another user and cannot be looked ",
                      "into; run this as that user or as root");
}

}  // namespace

NodeProcesses FindRanks(const ProcFs& proc, const std::string& job, const std::string& node,
                        const std::string& address) {
  NodeProcesses out;
  const std::vector<ProcessStat> all = proc.AllStats();
  const std::vector<Keeper> keepers = OnNode(proc, all, KeepersOf(proc, all, job), node, address);
  if (keepers.empty()) {
    out.why =
        "no keeper of this job can be seen here (its ranks are just being started or have "
        "ended, or they run in a container whose processes are hidden from this one)";
    return out;
  }
  if (keepers.size() > 1) {
    const auto name = [](std::string* text, const Keeper& k) {
      absl::StrAppend(text, k.node_state);
    };
    out.why =
        absl::StrCat("keepers of several clusters run a ", job, " here (",
                     absl::StrJoin(keepers, ", ", name), ") and no agent tells which is which");
    return out;
  }
  const Children children = ChildrenOf(proc, all, keepers[0].pid);
  for (const Child& child : children.known) {
    const auto found = out.ranks.find(child.rank);
    if (found != out.ranks.end()) {  // it has lost its parents
      AddTree(all, child.stat, /*with_root=*/true, &found->second.below);
    } else if (child.stat.session == child.stat.pid) {
      out.ranks[child.rank].rank = child.stat;
      AddTree(all, child.stat, /*with_root=*/false, &out.ranks[child.rank].below);
    }
  }
  if (children.hidden > 0) out.why = HiddenText(children.hidden);
  return out;
}

}  // namespace holdfast::cli
