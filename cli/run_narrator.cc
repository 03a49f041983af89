// SPDX-License-Identifier: Apache-2.0
#include "cli/run_narrator.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/ledger/ledger_file.h"
#include "cli/output.h"

namespace holdfast::cli {

void TellEnd(const v1::JobStatus& end) {
  if (end.state() == v1::JOB_STATE_DONE && end.restarts() == 0) return;
  Hint(absl::StrCat("holdfast: ", Short(end.state()),
                    end.reason().empty() ? "" : absl::StrCat(": ", end.reason()), "; ",
                    end.restarts(), " restart(s)"));
}

void KeepLedger(SchedulerClient* client, const std::string& job) {
  const std::string path = LedgerPath();
  if (path.empty()) return;
  v1::ListLedgerRequest request;
  request.set_job(job);
  auto ledger = client->Call("read the ledger", &v1::Scheduler::Stub::ListLedger, request);
  absl::Status status = ledger.status();
  if (ledger.ok())
    status = AppendLedger(path, {ledger->entries().begin(), ledger->entries().end()});
  if (!status.ok()) Hint(absl::StrCat("holdfast: the ledger is not kept: ", status.message()));
}

void RunNarrator::Tell(const v1::Event& event) {
  const std::string& kind = event.kind();
  // Not where it starts: only the script knows which checkpoint it loads.
  if (kind == "job.restarted") Hint(absl::StrCat("holdfast: attempt ", event.attempt(), " starts"));
  if (kind == "incident.opened" || kind == "incident.named")
    Hint(absl::StrCat("holdfast: ", event.text()));
  if (kind == "ledger.opened" || kind == "ledger.due")
    Hint(absl::StrCat("holdfast: ", event.text()));
  if (kind == "ledger.opened") TellHow(event);
  if (kind == "ledger.closed" && event.ledger().outcome() == v1::LedgerEntry::OUTCOME_WENT_ON)
    Hint(absl::StrCat("holdfast: ", event.text()));
  if (!job_.empty()) return;
  if (kind == "job.queued") Hint(absl::StrCat("holdfast: ", event.text()));
  if (kind == "node.lost" || kind == "node.loss_held")
    Hint(absl::StrCat("holdfast: node ", event.node(), ": ", event.text()));
}

// Once: the way to this run's own scheduler is nowhere else to be seen.
void RunNarrator::TellHow(const v1::Event& event) {
  if (std::exchange(how_told_, true)) return;
  const std::string job = ToString(JobId{event.job()});
  const std::string to = absl::StrCat(" --endpoint ", client_->endpoint(), "`");
  Hint(absl::StrCat("holdfast: to see more: `holdfast look ", job, to,
                    "; to have it acted on: `holdfast modes ", job, " ", event.ledger().cause(),
                    "=act", to, "; Ctrl-C ends the run"));
}

RunNarrator::RunNarrator(SchedulerClient* client, std::string job,
                         const std::string& incident_command)
    : client_(client), job_(std::move(job)), incidents_(incident_command) {
  thread_ = std::thread([this] { Run(); });
}

RunNarrator::~RunNarrator() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
}

void RunNarrator::Run() {
  uint64_t after = 0;
  while (true) {
    grpc::ClientContext context;
    proto::PrepareContext(&context, kStreamMs);
    {
      const MutexLock lock(mutex_);
      if (ended_) return;
      context_ = &context;
    }
    v1::WatchEventsRequest request;
    request.set_job(job_);
    request.set_follow(true);
    request.set_after_sequence(after);
    auto reader = client_->stub()->WatchEvents(&context, request);
    const absl::Status status =
        ReadStream<v1::Event>(&context, reader.get(), [&](const v1::Event& event) {
          after = std::max(after, event.sequence());
          Tell(event);
          incidents_.Add(event);
          return true;
        });
    const MutexLock lock(mutex_);
    context_ = nullptr;
    if (ended_) return;
    if (!status.ok()) changed_.WaitForNs(mutex_, kRetryPauseMs * kNsPerMs);
  }
}

}  // namespace holdfast::cli
