// SPDX-License-Identifier: Apache-2.0
// All jobs of this node, its devices and its fence: what the scheduler wants comes in, beats and
// edges go out. The loop's thread only; `Uplink` is how it speaks to the scheduler.
#ifndef HOLDFAST_AGENT_NODE_H_
#define HOLDFAST_AGENT_NODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/activity_watcher.h"
#include "agent/core/device_provider.h"
#include "agent/core/fence_guard.h"
#include "agent/event_loop.h"
#include "agent/node_job.h"
#include "agent/node_options.h"
#include "agent/peer_client.h"
#include "agent/saver.h"
#include "agent/work_queue.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

// Towards the scheduler. Called on the loop's thread; never blocks.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual void SendEvent(v1::RankEvent event, int64_t at_ns,
                         std::optional<v1::NodeReport> level) = 0;
  virtual void SendPrepared(v1::PreparedSave save, int64_t at_ns) = 0;
  // The newest level; takes the place of one that was not sent yet.
  virtual void SendBeat(v1::BeatRequest beat) = 0;
};

class Node {
 public:
  Node(EventLoop* loop, const NodeOptions& options, std::unique_ptr<DeviceProvider> devices,
       Saver* saver, WorkQueue* files, PeerClient* peers, ActivityWatcher* activity,
       Uplink* uplink);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Reads what an earlier agent left, adopts its keepers, starts the timers.
  absl::Status Start();

  // From the scheduler.
  absl::Status Registered(const v1::RegisterNodeResponse& response);
  void Desired(const v1::DesiredState& state);
  void BeatAnswered(int64_t sent_ns, const v1::BeatResponse& response);

  v1::NodeReport Report() const;
  v1::RegisterNodeRequest Registration() const;
  NodeJob* FindJob(uint64_t job);
  const NodeOptions& options() const { return options_; }

 private:
  NodeJob* JobFor(uint64_t job);
  void Beat();
  void Poll();
  void RefreshDevices();
  void PingWitnesses();
  void SetFences();
  void LookForUnknown();
  void Forgotten(uint64_t job);
  absl::Status LoadStateUuid();

  EventLoop* const loop_;
  const NodeOptions options_;
  std::unique_ptr<DeviceProvider> devices_;
  std::string device_error_;
  Saver* const saver_;
  WorkQueue* const files_;
  PeerClient* const peers_;
  ActivityWatcher* const activity_;
  Uplink* const uplink_;
  std::string state_uuid_;
  FenceGuard fence_;
  std::map<uint64_t, std::unique_ptr<NodeJob>> jobs_;
  std::vector<std::string> unknown_;
  uint64_t scheduler_epoch_ = 0;
  uint64_t desired_version_ = 0;
  uint64_t beat_ = 0;
  int64_t next_slow_poll_ns_ = 0;
  int64_t next_device_look_ns_ = 0;
  int64_t next_unknown_look_ns_ = 0;
  uint64_t poll_timer_ = 0, beat_timer_ = 0;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_NODE_H_
