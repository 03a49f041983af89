// SPDX-License-Identifier: Apache-2.0
// The agent's session with its scheduler: registers, beats, follows the desired state, reports
// edges. It survives every kind of outage: it connects again for ever (back-off 50 ms to 1 s),
// edges wait in a bounded queue, and nothing else stops meanwhile.
//
// Threads: three of its own (follow, beat, report), started by Start and joined by Stop. Uplink is
// called on the loop's thread; the callbacks are called on the loop's thread.
#ifndef HOLDFAST_AGENT_SESSION_H_
#define HOLDFAST_AGENT_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "agent/core/event_queue.h"
#include "agent/event_loop.h"
#include "agent/node.h"
#include "base/mutex.h"
#include "holdfast/v1/agent.grpc.pb.h"

namespace holdfast::agent {

class Session final : public Uplink {
 public:
  struct Callbacks {
    std::function<v1::RegisterNodeRequest()> registration;
    std::function<absl::Status(const v1::RegisterNodeResponse&)> registered;
    std::function<void(const v1::DesiredState&)> desired;
    std::function<void(int64_t sent_ns, const v1::BeatResponse&)> beat_answered;
  };

  Session(EventLoop* loop, const NodeOptions& options) : loop_(loop), options_(options) {}
  ~Session() override { Stop(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void Start(Callbacks callbacks);
  void Stop();  // cancels what is under way; the callbacks are not called after it returns if the
                // loop is not running

  void SendEvent(v1::RankEvent event, int64_t at_ns, std::optional<v1::NodeReport> level) override;
  void SendPrepared(v1::PreparedSave save, int64_t at_ns) override;
  void SendBeat(v1::BeatRequest beat) override;

 private:
  void FollowMain();
  absl::Status Register();
  void Follow();  // until the stream breaks
  void BeatMain();
  void ReportMain();
  bool Stopping();
  // False when stopping. Cancelled by Stop.
  bool BeginCall(grpc::ClientContext* context, grpc::ClientContext** slot);
  void EndCall(grpc::ClientContext** slot);
  void SetConnected(bool connected, const std::string& why);
  void Reconnect();

  EventLoop* const loop_;
  const NodeOptions options_;
  Callbacks callbacks_;
  std::unique_ptr<v1::AgentLink::Stub> stub_;

  Mutex mutex_;
  CondVar changed_;
  EventQueue events_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::BeatRequest> beat_ ABSL_GUARDED_BY(mutex_);
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t scheduler_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ClientContext* follow_call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* beat_call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* report_call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string last_error_;  // follow thread only
  std::thread follow_, beat_thread_, report_;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_SESSION_H_
