// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/sample.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace holdfast::inspect {
namespace {

constexpr double kNsPerSecond = 1e9;

// Counters only grow; one that did not is of something new, or was read in halves.
uint64_t Grown(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

void Add(const std::optional<double>& part, std::optional<double>* sum) {
  if (part.has_value()) *sum = sum->value_or(0) + *part;
}

bool WasBlocked(const ProcessSample& before, const ProcessSample& after) {
  const auto first = before.threads.find(before.stat.pid);
  const auto second = after.threads.find(after.stat.pid);
  if (first == before.threads.end() || second == after.threads.end()) return false;
  const auto line = ParseSyscall(after.syscall);
  return line.has_value() && line->where != SyscallLine::Where::kRunning &&
         before.syscall == after.syscall && first->second.slices == second->second.slices &&
         first->second.run_ns == second->second.run_ns;
}

}  // namespace

Sample TakeSample(const ProcFs& proc, const std::vector<pid_t>& pids) {
  Sample sample;
  for (const pid_t pid : pids) {
    auto stat = proc.Stat(pid);
    if (!stat.ok()) continue;
    ProcessSample& process = sample[pid];
    process.stat = *std::move(stat);
    if (const auto io = proc.Read(pid, "io"); io.ok()) process.io = ParseIo(*io);
    for (const pid_t thread : proc.Threads(pid)) {
      const auto text = proc.Read(pid, absl::StrCat("task/", thread, "/schedstat"));
      const auto counters = text.ok() ? ParseSchedstat(*text) : std::nullopt;
      if (counters) process.threads[thread] = *counters;
    }
    if (auto line = proc.Read(pid, "syscall"); line.ok()) process.syscall = *std::move(line);
  }
  return sample;
}

std::optional<Rates> RatesOf(const ProcessSample& before, const ProcessSample& after,
                             int64_t elapsed_ns, int64_t ticks_per_second) {
  if (elapsed_ns <= 0 || ticks_per_second <= 0 || before.stat.pid != after.stat.pid ||
      before.stat.start_ticks != after.stat.start_ticks)
    return std::nullopt;
  const double seconds = static_cast<double>(elapsed_ns) / kNsPerSecond;
  const auto rate = [seconds](uint64_t first, uint64_t second) {
    return static_cast<double>(Grown(first, second)) / seconds;
  };
  Rates rates;
  rates.cpus =
      rate(before.stat.cpu_ticks, after.stat.cpu_ticks) / static_cast<double>(ticks_per_second);
  for (const auto& [thread, counters] : after.threads) {
    const auto earlier = before.threads.find(thread);
    const uint64_t first = earlier == before.threads.end() ? 0 : earlier->second.queued_ns;
    rates.queued += rate(first, counters.queued_ns) / kNsPerSecond;
  }
  if (before.io && after.io) {
    rates.read = rate(before.io->read, after.io->read);
    rates.written = rate(before.io->written, after.io->written);
    rates.storage_read = rate(before.io->storage_read, after.io->storage_read);
    rates.storage_written = rate(before.io->storage_written, after.io->storage_written);
  }
  rates.blocked = WasBlocked(before, after);
  return rates;
}

Rates Sum(const std::vector<Rates>& parts) {
  Rates sum;
  for (const Rates& part : parts) {
    sum.cpus += part.cpus;
    sum.queued += part.queued;
    Add(part.read, &sum.read);
    Add(part.written, &sum.written);
    Add(part.storage_read, &sum.storage_read);
    Add(part.storage_written, &sum.storage_written);
  }
  return sum;
}

}  // namespace holdfast::inspect
