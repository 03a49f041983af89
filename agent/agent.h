// SPDX-License-Identifier: Apache-2.0
// A whole agent, put together: built, started and stopped in one order, in main() and in tests
// alike.
#ifndef HOLDFAST_AGENT_AGENT_H_
#define HOLDFAST_AGENT_AGENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "agent/activity_watcher.h"
#include "agent/agent_service.h"
#include "agent/event_loop.h"
#include "agent/node.h"
#include "agent/peer_client.h"
#include "agent/saver.h"
#include "agent/session.h"
#include "agent/work_queue.h"
#include "base/clock.h"

namespace holdfast::agent {

class Agent {
 public:
  explicit Agent(const NodeOptions& options) : options_(options) {}
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Adopts keepers, serves, begins to speak to the scheduler. Requires the state directory's lock.
  absl::Status Start();
  // Keepers and ranks go on. False when a save is still being written after `wait_ns`: then the
  // process must end without returning through destructors (what is half written is found by the
  // next agent).
  bool Stop(int64_t wait_ns);
  // Grows while the main loop turns: the watchdog is fed only then.
  uint64_t Progress() const { return loop_ == nullptr ? 0 : loop_->Progress(); }

 private:
  absl::Status Serve();
  std::unique_ptr<grpc::Server> ServeAt(const std::string& listen, int* port);

  const NodeOptions options_;
  std::string address_;  // where others reach this agent: the port is known once it is served
  SystemClock clock_;
  // In order of construction; what comes later uses what comes earlier.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<PeerClient> peers_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<WorkQueue> files_;
  std::unique_ptr<ActivityWatcher> activity_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::thread loop_thread_;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_AGENT_H_
