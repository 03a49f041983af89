// SPDX-License-Identifier: Apache-2.0
// Tells on stderr, beside the ranks' output, what happens to a job: from its making until its end.
#ifndef HOLDFAST_CLI_RUN_NARRATOR_H_
#define HOLDFAST_CLI_RUN_NARRATOR_H_

#include <string>
#include <thread>

#include "base/mutex.h"
#include "cli/client.h"
#include "cli/notify/incident_command.h"

namespace holdfast::cli {

// Says on stderr how the job ended, unless all that is to say is that it is done.
void TellEnd(const v1::JobStatus& end);

// What was found while the ranks lived goes into the user's ledger file (cli/ledger/). When that
// fails it is said, and changes nothing else.
void KeepLedger(SchedulerClient* client, const std::string& job);

// Has a thread of its own. `client` outlives it; only its stub is used.
class RunNarrator {
 public:
  // `job` empty: all that happens in a cluster that runs nothing else, its nodes and what a job
  // waits for included. `incident_command` runs for each incident; empty: none.
  RunNarrator(SchedulerClient* client, std::string job, const std::string& incident_command);
  ~RunNarrator();
  RunNarrator(const RunNarrator&) = delete;
  RunNarrator& operator=(const RunNarrator&) = delete;

 private:
  void Run();
  void Tell(const v1::Event& event);
  void TellHow(const v1::Event& event);

  SchedulerClient* const client_;
  const std::string job_;
  IncidentCommand incidents_;
  bool how_told_ = false;
  Mutex mutex_;
  CondVar changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_RUN_NARRATOR_H_
