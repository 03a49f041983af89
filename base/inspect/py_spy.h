// SPDX-License-Identifier: Apache-2.0
// Where Python code is, told by py-spy (MIT licence, `pip install py-spy`) as a helper process: it
// reads the interpreter's memory and, asked not to block, never stops it. What it reads may be in
// motion: a process that runs can be shown between two lines.
//
// Errors: NOT_FOUND no py-spy, PERMISSION_DENIED one that must not be run (see FindPySpy),
// DEADLINE_EXCEEDED it was killed, INTERNAL its own words. Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_PY_SPY_H_
#define HOLDFAST_BASE_INSPECT_PY_SPY_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/inspect/proc_fs.h"

namespace holdfast::inspect {

inline constexpr int64_t kPySpyDeadlineMs = 3'000;  // of one process
inline constexpr size_t kFramesMax = 32;            // that an answer holds

struct PythonFrame {
  std::string function;
  std::string file;
  int64_t line = 0;
};

// The interpreter's process runs Python: its executable is called python, python3, python3.12, ...
bool IsPython(const ProcFs& proc, pid_t pid);

// py-spy beside the interpreter of `pid` (its executable, or the name it was called by: that of a
// virtual environment), else in `path` ($PATH). It runs with our rights: beside the interpreter of
// another user only one is taken that nobody but root and we can have put there.
absl::StatusOr<std::string> FindPySpy(const ProcFs& proc, pid_t pid, const std::string& path);

// The frames of the main thread, the innermost first, from what `py-spy dump --json` wrote.
absl::StatusOr<std::vector<PythonFrame>> ParseDump(const std::string& json, pid_t pid);

absl::StatusOr<std::vector<PythonFrame>> PythonStack(const std::string& py_spy, pid_t pid);

// "read_file (data.py:17) < work (train.py:40)", `most` frames at most.
std::string StackText(const std::vector<PythonFrame>& frames, size_t most);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_PY_SPY_H_
