// SPDX-License-Identifier: Apache-2.0
// Calls to the scheduler as a person wants them: every call has a deadline, is repeated while the
// scheduler restarts (each mutating request carries its idempotency key, so a repeat is harmless),
// and an error says what failed and what to do, never a bare gRPC string.
#ifndef HOLDFAST_CLI_CLIENT_H_
#define HOLDFAST_CLI_CLIENT_H_

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/scheduler.grpc.pb.h"
#include "proto/channel.h"

namespace holdfast::cli {

inline constexpr int64_t kConnectMsDefault = 5'000;  // --timeout
inline constexpr int64_t kCallMs = 15'000;           // one unary call, repeats included
inline constexpr int64_t kRetryPauseMs = 100;
inline constexpr int64_t kStreamMs = 3'600'000;  // then it is opened again, unseen
inline constexpr int64_t kReconnectMsMax =
    600'000;  // a stream gives up after this long without a scheduler

// Not thread-safe.
class SchedulerClient {
 public:
  // `run_key`: of the run that the scheduler belongs to (proto/run_key.h); empty: none.
  SchedulerClient(std::string endpoint, int64_t connect_ms, const std::string& run_key = "");

  const std::string& endpoint() const { return endpoint_; }
  v1::Scheduler::Stub* stub() { return stub_.get(); }

  // Waits until the scheduler is reached; UNAVAILABLE names the endpoint and the remedy.
  absl::Status Connect(int64_t wait_ms);
  absl::Status Connect() { return Connect(connect_ms_); }

  // E.g. Call("cancel job j-42", &Stub::CancelJob, request). `what` begins the error.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const std::string& what,
                                grpc::Status (v1::Scheduler::Stub::*method)(grpc::ClientContext*,
                                                                            const Request&,
                                                                            Response*),
                                const Request& request) {
    Response response;
    absl::Status status = Repeat(what, [&](grpc::ClientContext* context) {
      response.Clear();
      return (stub_.get()->*method)(context, request, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  // A status of a stream or call made over stub(), worded for people.
  absl::Status Worded(const std::string& what, const absl::Status& status) const;
  absl::Status Unreachable() const;

 private:
  absl::Status Repeat(const std::string& what,
                      const std::function<grpc::Status(grpc::ClientContext*)>& call);

  const std::string endpoint_;
  const int64_t connect_ms_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Scheduler::Stub> stub_;
};

// True for a stream that a restart of the scheduler broke: it is opened again.
bool IsBroken(const absl::Status& status);

// Reads a server stream, one message at a time, until `on_message` returns false, the stream ends,
// or the user interrupts. The result is the stream's own status; CANCELLED after an interrupt or
// when `on_message` asked to stop.
template <typename Message>
absl::Status ReadStream(grpc::ClientContext* context, grpc::ClientReader<Message>* reader,
                        const std::function<bool(const Message&)>& on_message) {
  Message message;
  bool stopped = false;
  while (!stopped && reader->Read(&message)) stopped = !on_message(message);
  if (stopped) context->TryCancel();
  const absl::Status status = proto::FromGrpc(reader->Finish());
  if (stopped) return absl::CancelledError("stopped by the caller");
  return status;
}

// Orders the end of a job, named by id or by name; it ends later.
absl::StatusOr<v1::JobStatus> CancelJob(SchedulerClient* client, const std::string& job);

// SIGINT, SIGTERM, and SIGHUP unless it is ignored (nohup).
sigset_t InterruptSignals();

// One of InterruptSignals() while following: the current context is cancelled so that Read returns.
// One at a time in a process; the signals are taken by a thread of this object's. Make it before
// the first channel: gRPC's threads must inherit the blocked signals.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // The context to cancel; null for none. Cancels at once when the interrupt has come already.
  void Watch(grpc::ClientContext* context);
  bool interrupted() const;
  // As if a signal had come.
  void Interrupt();
  // Waits for the next one, after one was seen.
  void Rearm();
  // Sleeps, but an interrupt ends it.
  void Pause(int64_t ms);

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_CLIENT_H_
