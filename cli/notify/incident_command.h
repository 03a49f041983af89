// SPDX-License-Identifier: Apache-2.0
// A user's command for each incident: a webhook with curl, a page, a line in a chat.
#ifndef HOLDFAST_CLI_NOTIFY_INCIDENT_COMMAND_H_
#define HOLDFAST_CLI_NOTIFY_INCIDENT_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

inline constexpr int64_t kIncidentCommandMs = 30'000;  // then it is killed
inline constexpr size_t kIncidentsQueuedMax = 100;

// Runs `sh -c command` with the event as JSON on its standard input, HOLDFAST_JOB (j-42),
// HOLDFAST_INCIDENT (its id) and HOLDFAST_EVENT (its sequence number) in its environment. An error
// names the exit code and the last of its stderr.
absl::Status RunIncidentCommand(const std::string& command, const v1::Event& event);

// Runs it beside the caller, one event after the other, for incident.opened events; others are
// ignored. Threads: Add from one; the destructor waits for what is queued, kIncidentCommandMs at
// most.
class IncidentCommand {
 public:
  explicit IncidentCommand(std::string command);
  ~IncidentCommand();
  IncidentCommand(const IncidentCommand&) = delete;
  IncidentCommand& operator=(const IncidentCommand&) = delete;

  void Add(const v1::Event& event);

 private:
  void Run();

  const std::string command_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::Event> queue_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t end_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_NOTIFY_INCIDENT_COMMAND_H_
