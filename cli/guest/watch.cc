// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/watch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kLookMs = 1'000;

void TellEvent(const v1::Event& event) {
  // Not where it starts: only the script knows which checkpoint it loads.
  if (event.kind() == "job.restarted")
    Hint(absl::StrCat("holdfast: attempt ", event.attempt(), " starts"));
  if (event.kind() == "incident.opened" || event.kind() == "incident.named" ||
      event.kind() == "job.queued")
    Hint(absl::StrCat("holdfast: ", event.text()));
  if (event.kind() == "node.lost" || event.kind() == "node.loss_held")
    Hint(absl::StrCat("holdfast: node ", event.node(), ": ", event.text()));
}

}  // namespace

bool StallClock::TooLong(v1::JobState state, bool started, int64_t now_ns) {
  if (state != state_) {
    state_ = state;
    since_ns_ = now_ns;
  }
  if (!started) return false;
  const int64_t lasted_ms = (now_ns - since_ns_) / kNsPerMs;
  if (state == v1::JOB_STATE_QUEUED) return lasted_ms >= kShortOfNodesMs;
  return state == v1::JOB_STATE_RECOVERING && lasted_ms >= recovery_ms_;
}

GuestWatch::GuestWatch(const std::string& endpoint, std::string job, int64_t fence_ms,
                       const GuestDaemons* daemons, const std::string& incident_command)
    : endpoint_(endpoint),
      job_(std::move(job)),
      daemons_(daemons),
      stall_(fence_ms + kRecoveryMarginMs),
      incidents_(incident_command) {
  teller_ = std::thread([this] { Tell(); });
  looker_ = std::thread([this] { Look(); });
}

GuestWatch::~GuestWatch() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }
  teller_.join();
  looker_.join();
}

bool GuestWatch::gave_up() const {
  const MutexLock lock(mutex_);
  return gave_up_;
}

bool GuestWatch::WaitMs(int64_t ms) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + ms * kNsPerMs;
  const MutexLock lock(mutex_);
  for (int64_t left = ms * kNsPerMs; !ended_ && left > 0; left = end_ns - clock.MonoNs())
    changed_.WaitForNs(mutex_, left);
  return ended_;
}

void GuestWatch::GiveUp(const std::string& why) {
  Hint(absl::StrCat("holdfast: ", why));
  const MutexLock lock(mutex_);
  gave_up_ = true;
}

void GuestWatch::Tell() {
  SchedulerClient client(endpoint_, kConnectMsDefault);
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
    request.set_follow(true);
    request.set_after_sequence(after);
    auto reader = client.stub()->WatchEvents(&context, request);
    const absl::Status status =
        ReadStream<v1::Event>(&context, reader.get(), [&](const v1::Event& event) {
          after = std::max(after, event.sequence());
          TellEvent(event);
          incidents_.Add(event);
          return true;
        });
    {
      const MutexLock lock(mutex_);
      context_ = nullptr;
    }
    if (WaitMs(status.ok() ? 0 : kRetryPauseMs)) return;
  }
}

void GuestWatch::Look() {
  const SystemClock clock;
  SchedulerClient client(endpoint_, kConnectMsDefault);
  while (!WaitMs(kLookMs)) {
    v1::GetJobRequest request;
    request.set_job(job_);
    grpc::ClientContext context;
    proto::PrepareContext(&context, kLookMs, /*wait_for_ready=*/false);
    v1::JobStatus status;
    if (!daemons_->Alive()) {
      GiveUp("the supervisor of this node was killed");
      ::kill(::getpid(), SIGTERM);  // whoever waits for the job or its output
      return;
    }
    // A scheduler that died is started again.
    if (!client.stub()->GetJob(&context, request, &status).ok()) continue;
    if (!stall_.TooLong(status.state(), status.attempt() > 0, clock.MonoNs())) continue;
    GiveUp(absl::StrCat("the job cannot go on with the nodes that are left: ", status.reason()));
    const auto cancelled = CancelJob(&client, job_);
    if (!cancelled.ok()) Hint(absl::StrCat("holdfast: ", cancelled.status().message()));
    return;
  }
}

}  // namespace holdfast::cli
