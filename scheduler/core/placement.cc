// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace holdfast::sched {
namespace {

constexpr size_t kNodesInReasonMax = 8;

uint32_t RanksPerNode(const PlacementRequest& request) {
  return request.gpus_per_node > 0 ? request.gpus_per_node : std::max(1u, request.ranks_per_node);
}

bool Fits(const PlacementRequest& request, const PlacementNode& node) {
  if (!node.ready) return false;
  if (request.gpus_per_node == 0)
    return node.ranks_placed + RanksPerNode(request) <= static_cast<uint32_t>(kRanksPerNodeMax);
  return node.free.size() >= request.gpus_per_node;
}

void AddNode(const PlacementRequest& request, const PlacementNode& node, uint32_t* next_rank,
             v1::Placement* out) {
  v1::NodePlacement* placed = out->add_nodes();
  placed->set_node(node.name);
  for (uint32_t local = 0; local < RanksPerNode(request); ++local) {
    v1::RankPlacement* rank = placed->add_ranks();
    rank->set_rank((*next_rank)++);
    rank->set_local_rank(local);
    if (request.gpus_per_node == 0) continue;
    rank->set_device_id(node.free[local].id);
    rank->set_device_index(node.free[local].index);
  }
}

// The largest gang that fits now, in both directions: as many nodes as asked with fewer devices, as
// many devices on fewer nodes.
std::string WhatWouldFit(const PlacementRequest& request, const std::vector<PlacementNode>& nodes) {
  std::vector<size_t> free;
  for (const PlacementNode& node : nodes) {
    if (node.ready) free.push_back(node.free.size());
  }
  std::sort(free.rbegin(), free.rend());
  if (request.gpus_per_node == 0)
    return absl::StrCat("now fits: ", free.size(), " node(s) without devices");
  std::string text;
  if (free.size() >= request.nodes && free[request.nodes - 1] > 0) {
    text = absl::StrCat(request.nodes, " node(s) x ", free[request.nodes - 1], " GPU(s)");
  }
  const auto whole =
      std::count_if(free.begin(), free.end(), [&](size_t n) { return n >= request.gpus_per_node; });
  if (whole > 0)
    absl::StrAppend(&text, text.empty() ? "" : " or ", whole, " node(s) x ", request.gpus_per_node,
                    " GPU(s)");
  return text.empty() ? "nothing fits now" : absl::StrCat("now fits: ", text);
}

std::string Reason(const PlacementRequest& request, const std::vector<PlacementNode>& nodes) {
  std::string text = absl::StrCat("needs ", request.nodes, " node(s)");
  if (request.gpus_per_node > 0) {
    absl::StrAppend(&text, " x ", request.gpus_per_node, " GPU(s)");
  } else if (request.ranks_per_node > 1) {
    absl::StrAppend(&text, " x ", request.ranks_per_node, " rank(s) of at most ", kRanksPerNodeMax);
  }
  if (nodes.empty()) return absl::StrCat(text, "; no node is registered");
  size_t shown = 0;
  for (const PlacementNode& node : nodes) {
    if (shown == kNodesInReasonMax) break;
    absl::StrAppend(&text, shown == 0 ? "; " : ", ", node.name);
    if (!node.ready) {
      absl::StrAppend(&text, " is ", node.why_not);
    } else if (request.gpus_per_node > 0) {
      absl::StrAppend(&text, " has ", node.free.size(), " of ", node.devices, " free");
    } else {
      absl::StrAppend(&text, " runs ", node.ranks_placed, " rank(s)");
    }
    ++shown;
  }
  if (nodes.size() > shown) absl::StrAppend(&text, ", and ", nodes.size() - shown, " more");
  return absl::StrCat(text, "; ", WhatWouldFit(request, nodes));
}

std::vector<const PlacementNode*> ByTightness(const PlacementRequest& request,
                                              const std::vector<PlacementNode>& nodes) {
  std::vector<const PlacementNode*> fitting;
  for (const PlacementNode& node : nodes) {
    if (Fits(request, node)) fitting.push_back(&node);
  }
  std::sort(fitting.begin(), fitting.end(), [&](const PlacementNode* a, const PlacementNode* b) {
    if (request.gpus_per_node == 0 && a->ranks_placed != b->ranks_placed)
      return a->ranks_placed < b->ranks_placed;
    if (a->free.size() != b->free.size()) return a->free.size() < b->free.size();
    return a->name < b->name;
  });
  return fitting;
}

}  // namespace

PlacementResult Place(const PlacementRequest& request, const std::vector<PlacementNode>& nodes) {
  PlacementResult result;
  std::vector<const PlacementNode*> fitting = ByTightness(request, nodes);
  if (request.nodes == 0 || fitting.size() < request.nodes) {
    result.reason = Reason(request, nodes);
    return result;
  }
  std::vector<const PlacementNode*> chosen(request.nodes, nullptr);
  for (size_t i = 0; i < chosen.size() && i < request.preferred.size(); ++i) {
    auto it = std::find_if(fitting.begin(), fitting.end(), [&](const PlacementNode* node) {
      return node->name == request.preferred[i];
    });
    if (it == fitting.end()) continue;
    chosen[i] = *it;
    fitting.erase(it);
  }
  size_t next = 0;
  for (const PlacementNode*& slot : chosen) {
    if (slot == nullptr) slot = fitting[next++];
  }
  uint32_t next_rank = 0;
  for (const PlacementNode* node : chosen) AddNode(request, *node, &next_rank, &result.placement);
  result.placed = true;
  return result;
}

bool CouldEverFit(const PlacementRequest& request, const std::vector<PlacementNode>& nodes,
                  bool any_state) {
  const auto count = std::count_if(nodes.begin(), nodes.end(), [&](const PlacementNode& node) {
    return (any_state || node.ready) && node.devices >= request.gpus_per_node;
  });
  return request.nodes > 0 && static_cast<uint64_t>(count) >= request.nodes;
}

}  // namespace holdfast::sched
