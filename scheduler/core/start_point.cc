// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/start_point.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/ids.h"

namespace holdfast::sched {
namespace {

const records::AttemptLink* Find(const std::vector<records::AttemptLink>& links, uint64_t attempt) {
  for (const auto& link : links) {
    if (link.attempt() == attempt) return &link;
  }
  return nullptr;
}

const records::AttemptLink* Newest(const std::vector<records::AttemptLink>& links) {
  const records::AttemptLink* newest = nullptr;
  for (const auto& link : links) {
    if (newest == nullptr || link.attempt() > newest->attempt()) newest = &link;
  }
  return newest;
}

// Newest first, so that the first hit wins.
bool SealedByAll(const Point& point, const v1::Placement& placement,
                 const std::map<std::string, NodeArenas>& arenas) {
  for (const auto& node : placement.nodes()) {
    const auto on_node = arenas.find(node.node());
    if (on_node == arenas.end()) return false;
    for (const auto& rank : node.ranks()) {
      const auto held = on_node->second.find(rank.rank());
      if (held == on_node->second.end()) return false;
      if (std::find(held->second.begin(), held->second.end(), point) == held->second.end())
        return false;
    }
  }
  return placement.nodes_size() > 0;
}

// Points that the first rank holds: every complete snapshot is among them.
std::vector<Point> Candidates(const v1::Placement& placement,
                              const std::map<std::string, NodeArenas>& arenas) {
  if (placement.nodes_size() == 0 || placement.nodes(0).ranks_size() == 0) return {};
  const auto on_node = arenas.find(placement.nodes(0).node());
  if (on_node == arenas.end()) return {};
  const auto held = on_node->second.find(placement.nodes(0).ranks(0).rank());
  if (held == on_node->second.end()) return {};
  std::vector<Point> points = held->second;
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.step != b.step ? a.step > b.step : a.attempt > b.attempt;
  });
  return points;
}

v1::StartPoint MakeStart(v1::StartPoint::Source source, uint64_t job, const Point& point) {
  v1::StartPoint start;
  start.set_source(source);
  start.mutable_ref()->set_job(job);
  start.mutable_ref()->set_attempt(point.attempt);
  start.mutable_ref()->set_step(point.step);
  return start;
}

bool IsDamaged(v1::StartPoint::Source source, const Point& point,
               const std::vector<v1::StartPoint>& damaged) {
  return std::any_of(damaged.begin(), damaged.end(), [&](const v1::StartPoint& d) {
    return d.source() == source && Point{d.ref().attempt(), d.ref().step()} == point;
  });
}

Point NewestCommitted(const StartRequest& request) {
  Point best;
  for (const auto& ref : request.committed) {
    const Point point{ref.attempt(), ref.step()};
    if (!request.line->Contains(point)) continue;
    if (IsDamaged(v1::StartPoint::SOURCE_CHECKPOINT, point, request.damaged)) continue;
    if (point.step > best.step || (point.step == best.step && point.attempt > best.attempt))
      best = point;
  }
  return best;
}

absl::StatusOr<v1::StartPoint> ExactStep(const StartRequest& request) {
  Point snapshot, checkpoint;
  for (const Point& point : Candidates(*request.placement, *request.arenas)) {
    if (point.step == request.wanted_step &&
        SealedByAll(point, *request.placement, *request.arenas)) {
      snapshot = std::max(snapshot, point);
    }
  }
  std::string known;
  for (const auto& ref : request.committed) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", ref.step());
    if (ref.step() == request.wanted_step)
      checkpoint = std::max(checkpoint, Point{ref.attempt(), ref.step()});
  }
  if (snapshot.attempt == 0 && checkpoint.attempt == 0) {
    return absl::NotFoundError(
        absl::StrCat(ToString(JobId{request.job}),
                     " has neither a complete snapshot nor a committed checkpoint of step ",
                     request.wanted_step, "; committed steps: ", known.empty() ? "none" : known));
  }
  if (snapshot.attempt >= checkpoint.attempt)
    return MakeStart(v1::StartPoint::SOURCE_SNAPSHOT, request.job, snapshot);
  return MakeStart(v1::StartPoint::SOURCE_CHECKPOINT, request.job, checkpoint);
}

}  // namespace

Line::Line(uint64_t job, const std::vector<records::AttemptLink>& links) {
  const records::AttemptLink* link = Newest(links);
  uint64_t limit = std::numeric_limits<uint64_t>::max();
  while (link != nullptr) {
    if (!newest_step_.emplace(link->attempt(), limit).second)
      return;  // a record that points at itself
    const v1::StartPoint& start = link->start();
    if (start.source() != v1::StartPoint::SOURCE_SNAPSHOT &&
        start.source() != v1::StartPoint::SOURCE_CHECKPOINT)
      return;
    if (start.ref().job() != job) {
      foreign_root_ = start.ref();
      return;
    }
    limit = start.ref().step();
    link = Find(links, start.ref().attempt());
    // The link itself was pruned; its point is still on the line.
    if (link == nullptr) newest_step_.emplace(start.ref().attempt(), limit);
  }
}

bool Line::Contains(const Point& point) const {
  const auto it = newest_step_.find(point.attempt);
  return it != newest_step_.end() && point.step <= it->second;
}

void PruneLine(uint64_t job, std::vector<records::AttemptLink>* links) {
  std::set<uint64_t> keep;
  const records::AttemptLink* link = Newest(*links);
  while (link != nullptr && static_cast<int>(keep.size()) < kLineLinksMax &&
         keep.insert(link->attempt()).second) {
    if (link->start().ref().job() != job) break;
    link = Find(*links, link->start().ref().attempt());
  }
  std::erase_if(*links, [&](const records::AttemptLink& l) { return !keep.count(l.attempt()); });
}

Point NewestCompleteSnapshot(const v1::Placement& placement,
                             const std::map<std::string, NodeArenas>& arenas, const Line& line,
                             const std::vector<v1::StartPoint>& damaged) {
  for (const Point& point : Candidates(placement, arenas)) {
    if (IsDamaged(v1::StartPoint::SOURCE_SNAPSHOT, point, damaged)) continue;
    if (line.Contains(point) && SealedByAll(point, placement, arenas)) return point;
  }
  return {};
}

absl::StatusOr<v1::StartPoint> ChooseStartPoint(const StartRequest& request) {
  if (request.wanted_step > 0) return ExactStep(request);
  const Point snapshot =
      NewestCompleteSnapshot(*request.placement, *request.arenas, *request.line, request.damaged);
  const Point checkpoint = NewestCommitted(request);
  if (snapshot.attempt > 0 && snapshot.step >= checkpoint.step) {
    return MakeStart(v1::StartPoint::SOURCE_SNAPSHOT, request.job, snapshot);
  }
  if (checkpoint.attempt > 0)
    return MakeStart(v1::StartPoint::SOURCE_CHECKPOINT, request.job, checkpoint);
  const v1::CheckpointRef& root =
      request.line->foreign_root().attempt() > 0 ? request.line->foreign_root() : request.from;
  if (root.attempt() > 0) {
    return MakeStart(v1::StartPoint::SOURCE_CHECKPOINT, root.job(), {root.attempt(), root.step()});
  }
  v1::StartPoint scratch;
  scratch.set_source(v1::StartPoint::SOURCE_SCRATCH);
  return scratch;
}

std::string DescribeStart(const v1::StartPoint& start) {
  const CheckpointId id{JobId{start.ref().job()}, start.ref().attempt(), start.ref().step()};
  switch (start.source()) {
    case v1::StartPoint::SOURCE_SNAPSHOT:
      return absl::StrCat("the snapshot of step ", id.step, " in memory (attempt ", id.attempt,
                          ")");
    case v1::StartPoint::SOURCE_CHECKPOINT:
      return absl::StrCat("checkpoint ", ToString(id));
    default:
      return "the beginning";
  }
}

}  // namespace holdfast::sched
