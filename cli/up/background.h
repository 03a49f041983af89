// SPDX-License-Identifier: Apache-2.0
// The supervisor of `holdfast up` in a process of its own, for callers that go on (or go away) once
// all is ready.
#ifndef HOLDFAST_CLI_UP_BACKGROUND_H_
#define HOLDFAST_CLI_UP_BACKGROUND_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"
#include "cli/up/supervisor.h"

namespace holdfast::cli {

// Runs the supervisor in this process until it ends. Returns the exit code; `failure` says why when
// it is not 0.
int RunSupervisor(const RunDir& run_dir, SupervisorConfig config, absl::Status* failure);

// A directory that is ours to run in, and what is to run there.
struct PreparedUp {
  SupervisorConfig config;  // without what the caller wants said
  UniqueFd lock;            // of the directory
};
// Makes and locks the directory and writes what is missing in it, with a hint for what is kept. One
// clear error for a directory that cannot be used, is in use, or is held by a drill.
absl::StatusOr<PreparedUp> PrepareUp(const RunDir& run_dir, const UpOptions& options);

// Forks the supervisor, waits until it and all `nodes` answer, and returns its process. The
// directory's lock is kept by the child. `ends_with_caller`: when this process dies, however it
// does, the supervisor cancels the jobs and ends everything (a pipe tells it: a parent's death
// signal comes once for each of its threads). Fork comes first: call it before any thread is
// started. Errors carry what the daemons said.
struct Background {
  pid_t pid = 0;
  UniqueFd owner;  // with `ends_with_caller`: everything ends when this is closed, also by death
};
absl::StatusOr<Background> StartInBackground(const RunDir& run_dir, PreparedUp up, int nodes,
                                             bool ends_with_caller);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_BACKGROUND_H_
