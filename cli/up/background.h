// SPDX-License-Identifier: Apache-2.0
// The supervisor of `holdfast up` in a process of its own, for callers that go on (or go away) once
// all is ready.
#ifndef HOLDFAST_CLI_UP_BACKGROUND_H_
#define HOLDFAST_CLI_UP_BACKGROUND_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

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

// The pipe by which a process owns what it started: everything ends when `owner` is closed, also by
// death. (A parent's death signal would come once for each of its threads.)
struct Ownership {
  UniqueFd owner;             // write end: of the owning process alone
  UniqueFd watched;           // read end: for the supervisor, and by it for agents and keepers
  bool remove_state = false;  // once the owner is gone, also the state directory
};
absl::StatusOr<Ownership> MakeOwnership();

struct Background {
  pid_t pid = 0;
  Ownership ownership;
};
// Forks the supervisor, waits until all its daemons are ready, and returns its process. The
// directory's lock is kept by the child. With an `ownership` the supervisor cancels the jobs and
// ends everything when this process dies, however it does. `own_session`: apart from the caller's,
// which a workload manager's step is not. Fork comes first: call it before any thread is started.
// Errors carry what the daemons said; DEADLINE_EXCEEDED when they say nothing.
absl::StatusOr<Background> ForkSupervisor(const RunDir& run_dir, PreparedUp up, Ownership ownership,
                                          bool own_session);
// The same in a session of its own, and waits until all `nodes` are known to the scheduler.
absl::StatusOr<Background> StartInBackground(const RunDir& run_dir, PreparedUp up, int nodes,
                                             Ownership ownership);

// A supervisor in the place of an owned one that died: `holdfast up` by exec, for a process that
// has threads. Returns once it runs; its daemons come later.
absl::StatusOr<pid_t> RestartInBackground(const RunDir& run_dir, const Ownership& ownership);

// Sends `signal`, even to a stopped one, and waits for its end; KILL after `wait_ms`.
void EndBackground(pid_t pid, int signal, int64_t wait_ms);

// The body of that `up`: `watched` is the descriptor it inherited.
[[noreturn]] void BeOwned(const RunDir& run_dir, PreparedUp up, Ownership ownership);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_BACKGROUND_H_
