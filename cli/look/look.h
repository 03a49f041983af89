// SPDX-License-Identifier: Apache-2.0
// Looks twice, from outside, at the ranks of a job that run on this machine. Nothing is stopped,
// attached to or written: the job does not notice.
//
// Units: interval in milliseconds, rates as in base/inspect/sample.h.
// Errors: of single processes are sentences in the result; there are no others. Threads: one.
#ifndef HOLDFAST_CLI_LOOK_LOOK_H_
#define HOLDFAST_CLI_LOOK_LOOK_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/inspect/judge.h"
#include "base/inspect/py_spy.h"

namespace holdfast::cli {

inline constexpr int64_t kPythonMsMax = 30'000;  // of all Python stacks together

// Where a rank was placed.
struct PlacedRank {
  uint32_t rank = 0;
  std::string node;
  std::string address;  // of the node's agent
  bool here = false;    // the node is this machine
};

struct LookedProcess {
  inspect::Looked looked;
  std::string command;  // its arguments, or its name
  std::optional<std::vector<inspect::PythonFrame>> python;
  std::string python_error;
};

struct LookedRank {
  PlacedRank place;
  pid_t pid = 0;                         // 0: no process of it was found; `note` says why
  std::vector<LookedProcess> processes;  // the rank, then all below, each after its parent
  inspect::Rates all;                    // of the rank and all below
  std::string judgement;                 // "" when nothing is certain
  std::string note;
};

struct JobLook {
  std::vector<LookedRank> ranks;
  std::string python_hint;  // how to see Python lines, when they could not be
};

// `wait(ms)` passes the interval.
JobLook LookAt(const inspect::ProcFs& proc, const std::string& job,
               const std::vector<PlacedRank>& ranks, int64_t interval_ms,
               const std::function<void(int64_t)>& wait);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LOOK_LOOK_H_
