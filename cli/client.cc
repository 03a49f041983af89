// SPDX-License-Identifier: Apache-2.0
#include "cli/client.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kAttemptMs = 10'000;  // one try of a call

void PauseMs(int64_t ms) {
  timespec time{ms / 1000, (ms % 1000) * kNsPerMs};
  ::nanosleep(&time, nullptr);
}

}  // namespace

SchedulerClient::SchedulerClient(std::string endpoint, int64_t connect_ms,
                                 const std::string& run_key)
    : endpoint_(std::move(endpoint)),
      connect_ms_(connect_ms),
      channel_(proto::MakeChannel(endpoint_, run_key)),
      stub_(v1::Scheduler::NewStub(channel_)) {}

absl::Status SchedulerClient::Unreachable() const {
  return absl::UnavailableError(absl::StrCat(
      "no scheduler answers at ", endpoint_,
      "; start one with `holdfast up -d`, or name another with --state or --endpoint"));
}

absl::Status SchedulerClient::Connect(int64_t wait_ms) {
  const gpr_timespec until =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(std::max<int64_t>(wait_ms, 1), GPR_TIMESPAN));
  return channel_->WaitForConnected(until) ? absl::OkStatus() : Unreachable();
}

absl::Status SchedulerClient::Repeat(
    const std::string& what, const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  HF_RETURN_IF_ERROR(Connect());
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + kCallMs * kNsPerMs;
  while (true) {
    const int64_t left_ms = (end - clock.MonoNs()) / kNsPerMs;
    grpc::ClientContext context;
    proto::PrepareContext(&context, std::max<int64_t>(1, std::min(kAttemptMs, left_ms)));
    const absl::Status status = proto::FromGrpc(call(&context));
    if (status.ok()) return status;
    if (!IsBroken(status) || left_ms <= kRetryPauseMs) return Worded(what, status);
    PauseMs(kRetryPauseMs);
  }
}

absl::Status SchedulerClient::Worded(const std::string& what, const absl::Status& status) const {
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return status;
    case absl::StatusCode::kUnavailable:
      return Unreachable();
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat("cannot ", what, ": the scheduler at ", endpoint_, " did not answer within ",
                       kCallMs / 1000, " s; see its log (<state>/run/scheduler.log)"));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(
          absl::StrCat("cannot ", what, ": the scheduler at ", endpoint_,
                       " does not know this call; it is of another version than this holdfast"));
    default:
      return absl::Status(
          status.code(),
          absl::StrCat("cannot ", what, ": ",
                       message.empty() ? absl::StatusCodeToString(status.code()) : message));
  }
}

bool IsBroken(const absl::Status& status) {
  // CANCELLED is what a server that shuts down sends on its open streams; INTERNAL with RST_STREAM
  // comes from a connection that broke in the middle of a message.
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kCancelled ||
         (status.code() == absl::StatusCode::kInternal &&
          absl::StrContains(status.message(), "RST_STREAM"));
}

absl::StatusOr<v1::JobStatus> CancelJob(SchedulerClient* client, const std::string& job) {
  v1::CancelJobRequest request;
  request.set_idempotency_key(proto::NewIdempotencyKey());
  request.set_job(job);
  return client->Call(absl::StrCat("cancel ", job), &v1::Scheduler::Stub::CancelJob, request);
}

sigset_t InterruptSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) ::sigaddset(&set, SIGHUP);
  return set;
}

struct InterruptGuard::Shared {
  Mutex mutex;
  CondVar changed;
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;
  bool interrupted ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> ending{false};
  sigset_t signals{};
  sigset_t before{};
  std::thread thread;

  void Run() {
    int signal = 0;
    while (::sigwait(&signals, &signal) == 0 && !ending.load()) Interrupt();
  }

  void Interrupt() {
    const MutexLock lock(mutex);
    interrupted = true;
    if (context != nullptr) context->TryCancel();
    changed.NotifyAll();
  }
};

InterruptGuard::InterruptGuard() : shared_(std::make_unique<Shared>()) {
  shared_->signals = InterruptSignals();
  ::pthread_sigmask(SIG_BLOCK, &shared_->signals, &shared_->before);
  shared_->thread = std::thread([s = shared_.get()] { s->Run(); });
}

InterruptGuard::~InterruptGuard() {
  shared_->ending.store(true);
  ::pthread_kill(shared_->thread.native_handle(),
                 SIGTERM);  // wakes sigwait; blocked everywhere, so it does nothing else
  shared_->thread.join();
  ::pthread_sigmask(SIG_SETMASK, &shared_->before, nullptr);
}

void InterruptGuard::Watch(grpc::ClientContext* context) {
  const MutexLock lock(shared_->mutex);
  shared_->context = context;
  if (shared_->interrupted && context != nullptr) context->TryCancel();
}

bool InterruptGuard::interrupted() const {
  const MutexLock lock(shared_->mutex);
  return shared_->interrupted;
}

void InterruptGuard::Interrupt() { shared_->Interrupt(); }

void InterruptGuard::Rearm() {
  const MutexLock lock(shared_->mutex);
  shared_->interrupted = false;
}

void InterruptGuard::Pause(int64_t ms) {
  const SystemClock clock;
  const int64_t end = clock.MonoNs() + ms * kNsPerMs;
  const MutexLock lock(shared_->mutex);
  while (!shared_->interrupted && clock.MonoNs() < end)
    shared_->changed.WaitForNs(shared_->mutex, end - clock.MonoNs());
}

}  // namespace holdfast::cli
