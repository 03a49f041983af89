// SPDX-License-Identifier: Apache-2.0
#include "agent/core/event_queue.h"

#include <algorithm>

#include "base/clock.h"

namespace holdfast::agent {
namespace {

bool SameRank(const v1::RankReport& a, const v1::RankReport& b) {
  return a.job() == b.job() && a.attempt() == b.attempt() && a.rank() == b.rank();
}

// What the level of the next beat tells as well.
bool Expendable(const QueuedEvent& e) {
  return !e.prepared.has_value() && !e.in_flight &&
         (e.event.kind() == v1::RankEvent::KIND_SEALED ||
          e.event.kind() == v1::RankEvent::KIND_STARTED ||
          e.event.kind() == v1::RankEvent::KIND_CONTINUED);
}

}  // namespace

void EventQueue::PushEvent(v1::RankEvent event, int64_t at_ns,
                           std::optional<v1::NodeReport> report) {
  if (event.kind() == v1::RankEvent::KIND_SEALED) {
    // A newer seal tells all the older one did: its report lists what the arena holds.
    for (QueuedEvent& queued : events_) {
      if (queued.in_flight || queued.event.kind() != event.kind()) continue;
      if (!SameRank(queued.event.rank(), event.rank())) continue;
      queued.event = std::move(event);
      queued.at_ns = at_ns;
      queued.bytes = queued.event.ByteSizeLong();
      return;
    }
  }
  QueuedEvent queued;
  queued.event = std::move(event);
  queued.at_ns = at_ns;
  queued.report = std::move(report);
  queued.bytes = queued.event.ByteSizeLong() + (queued.report ? queued.report->ByteSizeLong() : 0);
  Push(std::move(queued));
}

void EventQueue::PushPrepared(v1::PreparedSave prepared, int64_t at_ns) {
  QueuedEvent queued;
  queued.bytes = prepared.ByteSizeLong();
  queued.prepared = std::move(prepared);
  queued.at_ns = at_ns;
  Push(std::move(queued));
}

void EventQueue::Push(QueuedEvent event) {
  if (events_.size() >= kQueuedEventsMax) MakeRoom();
  events_.push_back(std::move(event));
}

void EventQueue::MakeRoom() {
  auto victim = std::find_if(events_.begin(), events_.end(), Expendable);
  if (victim == events_.end()) {
    victim = std::find_if(events_.begin(), events_.end(),
                          [](const QueuedEvent& e) { return !e.in_flight; });
  }
  if (victim == events_.end()) return;
  events_.erase(victim);
  ++dropped_;
}

bool EventQueue::MakeBatch(int64_t now_ns, v1::ReportEventsRequest* out) {
  if (events_.empty()) return false;
  if (in_flight_ == 0) {
    size_t bytes = 0;
    for (QueuedEvent& queued : events_) {
      if (in_flight_ >= kBatchEventsMax ||
          (in_flight_ > 0 && bytes + queued.bytes > kBatchBytesMax))
        break;
      bytes += queued.bytes;
      queued.in_flight = true;
      ++in_flight_;
      if (queued.report.has_value()) break;  // one level a request, right after its event
    }
  }
  out->Clear();
  out->set_sequence(sequence_);
  for (size_t i = 0; i < in_flight_; ++i) {
    const QueuedEvent& queued = events_[i];
    if (queued.prepared.has_value()) {
      *out->add_prepared() = *queued.prepared;
      continue;
    }
    v1::RankEvent* event = out->add_events();
    *event = queued.event;
    const int64_t age_ns = std::max<int64_t>(0, now_ns - queued.at_ns);
    event->set_age_ms(age_ns / kNsPerMs);
    event->set_age_us(age_ns / kNsPerUs);
    if (queued.report.has_value()) *out->mutable_report() = *queued.report;
  }
  return true;
}

void EventQueue::Acknowledge(uint64_t sequence) {
  if (sequence != sequence_) return;
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(in_flight_));
  in_flight_ = 0;
  ++sequence_;
}

}  // namespace holdfast::agent
