// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/look_once.h"

#include <unistd.h>

#include "base/inspect/wait.h"

namespace holdfast::inspect {
namespace {

bool ReadsAPipe(const Wait& wait) {
  const bool reads = wait.kind == WaitKind::kPoll || wait.call == "read" || wait.call == "readv";
  return reads && wait.targets.size() == 1 && wait.targets[0].rfind("pipe:[", 0) == 0;
}

}  // namespace

Looked LookOnce(const ProcFs& proc, const ProcessSample& now, const Sample& before,
                int64_t elapsed_ns, PipeWriters* writers) {
  Looked looked;
  const pid_t pid = now.stat.pid;
  looked.stat = now.stat;
  if (const auto earlier = before.find(pid); earlier != before.end())
    looked.rates = RatesOf(earlier->second, now, elapsed_ns, ::sysconf(_SC_CLK_TCK));
  if (const auto line = ParseSyscall(now.syscall)) {
    looked.wait = ExplainWait(proc, pid, *line);
    if (ReadsAPipe(*looked.wait)) {
      for (const pid_t writer : writers->Of(looked.wait->targets[0])) {
        if (writer != pid) looked.writers.push_back(writer);
      }
    }
  }
  if (const auto status = proc.Read(pid, "status"); status.ok())
    looked.tracer = static_cast<pid_t>(ParseField(*status, "TracerPid").value_or(0));
  return looked;
}

}  // namespace holdfast::inspect
