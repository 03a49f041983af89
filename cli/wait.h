// SPDX-License-Identifier: Apache-2.0
// Waiting for a job's end, across restarts of the scheduler.
#ifndef HOLDFAST_CLI_WAIT_H_
#define HOLDFAST_CLI_WAIT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client.h"

namespace holdfast::cli {

struct EventQuery {
  std::string job;  // empty: any
  uint64_t after = 0;
  bool follow = true;
  int64_t deadline_ms = kStreamMs;
};
// Opens the stream of events once and passes on those that follow `after`, until `on_event` returns
// false or the stream ends; as ReadStream. `guard` may be null.
absl::Status ReadEvents(SchedulerClient* client, InterruptGuard* guard, const EventQuery& query,
                        const std::function<bool(const v1::Event&)>& on_event);

// Returns after the next event of `job` (empty: any) whose kind begins with `kind_prefix` and that
// follows *sequence, after `wait_ms`, or when the stream ended for any other reason. `guard` may be
// null.
absl::Status WaitForEvent(SchedulerClient* client, InterruptGuard* guard, const std::string& job,
                          const std::string& kind_prefix, int64_t wait_ms, uint64_t* sequence);

// The job's last status. DEADLINE_EXCEEDED at `end_ns` (CLOCK_MONOTONIC). UNAVAILABLE after
// kReconnectMsMax without a scheduler, CANCELLED after an interrupt, NOT_FOUND.
absl::StatusOr<v1::JobStatus> WaitForEnd(SchedulerClient* client, InterruptGuard* guard,
                                         const std::string& job, int64_t end_ns = INT64_MAX);

// Waits, prints "j-3 DONE: ..." on stderr (and the status on stdout with `json`), returns the exit
// code.
int WaitAndReport(SchedulerClient* client, InterruptGuard* guard, const std::string& job,
                  bool json);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_WAIT_H_
