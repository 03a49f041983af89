// SPDX-License-Identifier: Apache-2.0
#include "cli/look/look.h"

#include <unistd.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/inspect/look_once.h"
#include "cli/look/ranks.h"

namespace holdfast::cli {
namespace {

using inspect::ProcessSample;
using inspect::ProcFs;
using inspect::Sample;

// By node.
using Found = std::map<std::string, NodeProcesses>;

Found FindAll(const ProcFs& proc, const std::string& job, const std::vector<PlacedRank>& ranks) {
  Found found;
  for (const PlacedRank& rank : ranks) {
    if (rank.here && found.count(rank.node) == 0)
      found[rank.node] = FindRanks(proc, job, rank.node, rank.address);
  }
  return found;
}

const RankProcesses* RankOf(const Found& found, const PlacedRank& place) {
  const auto node = found.find(place.node);
  if (node == found.end()) return nullptr;
  const auto rank = node->second.ranks.find(place.rank);
  return rank == node->second.ranks.end() ? nullptr : &rank->second;
}

std::vector<pid_t> PidsOf(const RankProcesses& rank) {
  std::vector<pid_t> pids = {rank.rank.pid};
  for (const inspect::ProcessStat& process : rank.below) pids.push_back(process.pid);
  return pids;
}

std::vector<pid_t> AllPids(const Found& found, const std::vector<PlacedRank>& ranks) {
  std::vector<pid_t> pids;
  for (const PlacedRank& place : ranks) {
    const RankProcesses* rank = RankOf(found, place);
    if (rank == nullptr) continue;
    const std::vector<pid_t> own = PidsOf(*rank);
    pids.insert(pids.end(), own.begin(), own.end());
  }
  return pids;
}

std::string CommandOf(const ProcFs& proc, const inspect::ProcessStat& stat) {
  const std::vector<std::string> arguments = proc.Arguments(stat.pid);
  return arguments.empty() ? absl::StrCat("[", stat.name, "]") : absl::StrJoin(arguments, " ");
}

// What was said about a pid holds only if it still names the same process.
bool IsStill(const ProcFs& proc, const inspect::ProcessStat& stat) {
  const auto now = proc.Stat(stat.pid);
  return now.ok() && now->start_ticks == stat.start_ticks;
}

std::string NoteOfMissing(const Found& first, const Found& second, const PlacedRank& place) {
  if (!place.here)
    return absl::StrCat("runs on another machine: run `holdfast look` on node ", place.node);
  if (RankOf(first, place) != nullptr) return "has ended while it was looked at";
  const std::string& why = second.at(place.node).why;
  return absl::StrCat("no process of it can be seen: ",
                      why.empty() ? "it is just being started or has ended" : why);
}

LookedRank LookAtRank(const ProcFs& proc, const PlacedRank& place, const RankProcesses& rank,
                      const Sample& before, const Sample& now, int64_t elapsed_ns) {
  LookedRank out;
  out.place = place;
  out.pid = rank.rank.pid;
  const std::vector<pid_t> pids = PidsOf(rank);
  inspect::PipeWriters writers(proc, pids);
  inspect::LookedAt all;
  std::vector<inspect::Rates> rates;
  int unreadable = 0;
  for (const pid_t pid : pids) {
    const auto found = now.find(pid);
    if (found == now.end()) continue;
    LookedProcess process;
    process.looked = inspect::LookOnce(proc, found->second, before, elapsed_ns, &writers);
    process.command = CommandOf(proc, found->second.stat);
    if (!IsStill(proc, found->second.stat)) continue;
    if (process.looked.rates) rates.push_back(*process.looked.rates);
    const char state = found->second.stat.state;
    unreadable += found->second.syscall.empty() && state != 'Z' && state != 'X' ? 1 : 0;
    all[pid] = process.looked;
    out.processes.push_back(std::move(process));
  }
  out.all = Sum(rates);
  if (all.count(out.pid) == 0) {
    out.pid = 0;
    out.processes.clear();
    out.note = "has ended while it was looked at";
    return out;
  }
  out.judgement = inspect::Judge(out.pid, all);
  if (unreadable > 0)
    out.note =
        absl::StrCat("what ", unreadable, " of its processes read, write and wait for cannot ",
                     "be read: they are another user's, or this kernel hides it");
  return out;
}

// One py-spy after the other: each takes a fraction of a second, and many at once would disturb the
// job. Those that hang are given up together.
class PythonReader {
 public:
  explicit PythonReader(const ProcFs& proc) : proc_(proc) {
    const char* path = std::getenv("PATH");
    path_ = path == nullptr ? "" : path;
  }

  void Read(LookedProcess* process) {
    const pid_t pid = process->looked.stat.pid;
    const char state = process->looked.stat.state;
    if (state == 'Z' || state == 'X' || !process->looked.wait || !inspect::IsPython(proc_, pid))
      return;
    const auto py_spy = inspect::FindPySpy(proc_, pid, path_);
    if (!py_spy.ok()) {
      hint_ = absl::StrCat("no Python lines: ", py_spy.status().message(),
                           absl::IsNotFound(py_spy.status()) ? " (`pip install py-spy`)" : "");
      return;
    }
    if (clock_.MonoNs() > end_ns_) {
      process->python_error =
          absl::StrCat("not looked at: the ", kPythonMsMax / 1000, " s for Python lines are over");
      return;
    }
    auto stack = inspect::PythonStack(*py_spy, pid);
    if (!IsStill(proc_, process->looked.stat)) return;
    if (stack.ok()) {
      process->python = *std::move(stack);
    } else {
      process->python_error = std::string(stack.status().message());
    }
  }
  const std::string& hint() const { return hint_; }

 private:
  const ProcFs& proc_;
  const SystemClock clock_;
  const int64_t end_ns_ = clock_.MonoNs() + kPythonMsMax * kNsPerMs;
  std::string path_, hint_;
};

}  // namespace

JobLook LookAt(const ProcFs& proc, const std::string& job, const std::vector<PlacedRank>& ranks,
               int64_t interval_ms, const std::function<void(int64_t)>& wait) {
  const SystemClock clock;
  const Found first = FindAll(proc, job, ranks);
  const int64_t begin_ns = clock.MonoNs();
  const Sample before = inspect::TakeSample(proc, AllPids(first, ranks));
  if (!before.empty()) wait(interval_ms);
  const Found second = FindAll(proc, job, ranks);
  const int64_t end_ns = clock.MonoNs();
  const Sample now = inspect::TakeSample(proc, AllPids(second, ranks));
  JobLook out;
  for (const PlacedRank& place : ranks) {
    if (const RankProcesses* rank = RankOf(second, place)) {
      out.ranks.push_back(LookAtRank(proc, place, *rank, before, now, end_ns - begin_ns));
    } else {
      out.ranks.emplace_back();
      out.ranks.back().place = place;
      out.ranks.back().note = NoteOfMissing(first, second, place);
    }
  }
  PythonReader python(proc);
  for (LookedRank& rank : out.ranks) {
    for (LookedProcess& process : rank.processes) python.Read(&process);
  }
  out.python_hint = python.hint();
  return out;
}

}  // namespace holdfast::cli
