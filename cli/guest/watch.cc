// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/watch.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kLookMs = 1'000;

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
    : client_(endpoint, kConnectMsDefault),
      job_(std::move(job)),
      daemons_(daemons),
      stall_(fence_ms + kRecoveryMarginMs),
      narrator_(&client_, /*job=*/"", incident_command) {
  looker_ = std::thread([this] { Look(); });
}

GuestWatch::~GuestWatch() {
  stop_.Set();
  looker_.join();
}

void GuestWatch::GiveUp(const std::string& why) {
  Hint(absl::StrCat("holdfast: ", why));
  gave_up_.store(true);
}

void GuestWatch::Look() {
  const SystemClock clock;
  while (!stop_.WaitMs(kLookMs)) {
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
    if (!client_.stub()->GetJob(&context, request, &status).ok()) continue;
    if (!stall_.TooLong(status.state(), status.attempt() > 0, clock.MonoNs())) continue;
    GiveUp(absl::StrCat("the job cannot go on with the nodes that are left: ", status.reason()));
    const auto cancelled = CancelJob(&client_, job_);
    if (!cancelled.ok()) Hint(absl::StrCat("holdfast: ", cancelled.status().message()));
    return;
  }
}

}  // namespace holdfast::cli
