// SPDX-License-Identifier: Apache-2.0
// Edges that wait to reach the scheduler: bounded, coalesced, kept until acknowledged. What is
// dropped at the limit is what the level in the next beat tells anyway, and it is counted. Ages are
// computed when a batch is made, not when the event happened.
//
// Threads: none of its own; the owner serialises. A batch stays in the queue until Acknowledge.
#ifndef HOLDFAST_AGENT_CORE_EVENT_QUEUE_H_
#define HOLDFAST_AGENT_CORE_EVENT_QUEUE_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

inline constexpr size_t kQueuedEventsMax = 4096;
inline constexpr size_t kBatchEventsMax = 512;
inline constexpr size_t kBatchBytesMax = 8 << 20;  // half of an RPC's limit: manifests can be large

struct QueuedEvent {
  v1::RankEvent event;                       // ages unset
  int64_t at_ns = 0;                         // CLOCK_MONOTONIC
  std::optional<v1::PreparedSave> prepared;  // an event is a rank event or a prepared save
  std::optional<v1::NodeReport> report;      // of KIND_STOP_COMPLETE: the level right after it
  size_t bytes = 0;
  bool in_flight = false;
};

class EventQueue {
 public:
  void PushEvent(v1::RankEvent event, int64_t at_ns,
                 std::optional<v1::NodeReport> report = std::nullopt);
  void PushPrepared(v1::PreparedSave prepared, int64_t at_ns);

  bool empty() const { return events_.empty(); }
  size_t size() const { return events_.size(); }
  uint64_t dropped() const { return dropped_; }

  // The oldest events as one request with ages relative to `now_ns`; the same `sequence` until it
  // is acknowledged (a repeat may hold the same events with other ages, never other events). node,
  // boot_id and epoch are the caller's. False when empty.
  bool MakeBatch(int64_t now_ns, v1::ReportEventsRequest* out);
  void Acknowledge(uint64_t sequence);

 private:
  void Push(QueuedEvent event);
  void MakeRoom();

  std::deque<QueuedEvent> events_;
  uint64_t sequence_ = 1;
  size_t in_flight_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_EVENT_QUEUE_H_
