// SPDX-License-Identifier: Apache-2.0
#include "agent/core/fence_guard.h"

#include <algorithm>
#include <functional>

#include "base/clock.h"
#include "base/limits.h"

namespace holdfast::agent {

void FenceGuard::SetWitnesses(const std::vector<std::string>& addresses) {
  std::map<std::string, int64_t> kept;
  for (const std::string& address : addresses) {
    if (kept.size() >= static_cast<size_t>(kWitnessesMax)) break;
    const auto old = witness_ns_.find(address);
    kept[address] = old == witness_ns_.end() ? 0 : old->second;
  }
  witness_ns_ = std::move(kept);
}

void FenceGuard::BeatAnswered(int64_t sent_ns) {
  beat_ns_ = std::max(beat_ns_.value_or(0), sent_ns);
}

void FenceGuard::WitnessAnswered(const std::string& address, int64_t sent_ns) {
  const auto it = witness_ns_.find(address);
  if (it != witness_ns_.end()) it->second = std::max(it->second, sent_ns);
}

std::vector<std::string> FenceGuard::Witnesses() const {
  std::vector<std::string> out;
  for (const auto& [address, unused] : witness_ns_) out.push_back(address);
  return out;
}

std::optional<int64_t> FenceGuard::LastContactNs() const {
  int64_t contact = beat_ns_.value_or(0);
  if (!witness_ns_.empty()) {
    std::vector<int64_t> answers;
    for (const auto& [unused, ns] : witness_ns_) answers.push_back(ns);
    std::sort(answers.begin(), answers.end(), std::greater<>());
    // At least half of n witnesses answered at or after the ceil(n/2)-th newest answer.
    contact = std::max(contact, answers[(answers.size() + 1) / 2 - 1]);
  }
  if (contact == 0) return std::nullopt;
  return contact;
}

std::optional<int64_t> FenceGuard::DeadlineNs(int64_t fence_ms) const {
  const std::optional<int64_t> contact = LastContactNs();
  if (!contact.has_value()) return std::nullopt;
  if (witness_ns_.empty()) return 0;
  return *contact + fence_ms * kNsPerMs;
}

}  // namespace holdfast::agent
