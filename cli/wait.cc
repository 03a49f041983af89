// SPDX-License-Identifier: Apache-2.0
#include "cli/wait.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

// The event stream only wakes us; the job's state is asked for. So a lost event costs at most this
// long.
constexpr int64_t kLookAgainMs = 10'000;

absl::StatusOr<v1::JobStatus> Get(SchedulerClient* client, const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  return client->Call(absl::StrCat("look at ", job), &v1::Scheduler::Stub::GetJob, request);
}

}  // namespace

absl::Status ReadEvents(SchedulerClient* client, InterruptGuard* guard, const EventQuery& query,
                        const std::function<bool(const v1::Event&)>& on_event) {
  grpc::ClientContext context;
  proto::PrepareContext(&context, std::max<int64_t>(1, query.deadline_ms));
  if (guard != nullptr) guard->Watch(&context);
  v1::WatchEventsRequest request;
  request.set_job(query.job);
  request.set_follow(query.follow);
  request.set_after_sequence(query.after);
  auto reader = client->stub()->WatchEvents(&context, request);
  const absl::Status status = ReadStream<v1::Event>(&context, reader.get(), on_event);
  if (guard != nullptr) guard->Watch(nullptr);
  return status;
}

absl::Status WaitForEvent(SchedulerClient* client, InterruptGuard* guard, const std::string& job,
                          const std::string& kind_prefix, int64_t wait_ms, uint64_t* sequence) {
  EventQuery query;
  query.job = job;
  query.after = *sequence;
  query.deadline_ms = wait_ms;
  return ReadEvents(client, guard, query, [&](const v1::Event& event) {
    *sequence = event.sequence();
    return !absl::StartsWith(event.kind(), kind_prefix);
  });
}

absl::StatusOr<v1::JobStatus> WaitForEnd(SchedulerClient* client, InterruptGuard* guard,
                                         const std::string& job, int64_t end_ns) {
  const SystemClock clock;
  std::string id = job;  // a name may become ambiguous while we wait, its id does not
  uint64_t sequence = 0;
  int64_t heard_ns = 0;  // 0: never
  while (!guard->interrupted()) {
    auto status = Get(client, id);
    const int64_t now = clock.MonoNs();
    if (status.ok()) {
      if (IsEnded(*status)) return status;
      id = ToString(JobId{status->id()});
      heard_ns = now;
    } else if (heard_ns == 0 || ExitCodeOf(status.status()) != kExitUnreachable ||
               now - heard_ns > kReconnectMsMax * kNsPerMs) {
      return status;
    }
    if (now >= end_ns)
      return absl::DeadlineExceededError(absl::StrCat(id, " has not ended in time"));
    const int64_t wait_ms = std::min(kLookAgainMs, (end_ns - now) / kNsPerMs);
    const absl::Status stream = WaitForEvent(client, guard, id, "job.", wait_ms, &sequence);
    // A stream that cannot be opened must not become a busy loop.
    if (IsBroken(stream) && stream.code() != absl::StatusCode::kCancelled)
      guard->Pause(kRetryPauseMs);
  }
  return absl::CancelledError(absl::StrCat("interrupted; ", id, " goes on: holdfast wait ", id));
}

int WaitAndReport(SchedulerClient* client, InterruptGuard* guard, const std::string& job,
                  bool json) {
  auto status = WaitForEnd(client, guard, job);
  if (!status.ok()) return Fail(status.status());
  if (json && !PrintLine(ToJson(*status))) return kExitRefused;
  const std::string id = ToString(JobId{status->id()});
  Hint(absl::StrCat(id, " ", Short(status->state()), status->reason().empty() ? "" : ": ",
                    status->reason()));
  if (status->state() == v1::JOB_STATE_FAILED) Hint(absl::StrCat("see: holdfast describe ", id));
  return ExitCodeOfEnd(*status);
}

}  // namespace holdfast::cli
