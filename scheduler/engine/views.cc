// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/views.h"

#include <algorithm>

#include "base/clock.h"
#include "scheduler/engine/failures.h"

namespace holdfast::sched {

v1::JobStatus ViewJob(const records::JobRecord& job, const Facts& all) {
  v1::JobStatus status = job.status();
  const auto found = all.jobs.find(status.id());
  if (found == all.jobs.end()) return status;
  const JobFacts& facts = found->second;
  if (!facts.waiting.empty() && !IsEnded(status.state())) status.set_reason(facts.waiting);
  if (facts.attempt != job.last_run_attempt() || IsEnded(status.state())) return status;
  if (!facts.ranks.empty() && facts.ranks.size() == WorldSize(status.placement()) &&
      SmallestStep(facts) > 0) {
    status.set_step(SmallestStep(facts));
  }
  uint64_t skipped = 0;
  for (const auto& [rank, f] : facts.ranks) skipped = std::max(skipped, f.skipped);
  status.set_snapshots_skipped(skipped);
  const auto first = facts.ranks.find(0);
  if (first != facts.ranks.end() && first->second.has_loss) status.set_loss(first->second.loss);
  if (facts.newest_complete_step > 0) {
    status.mutable_newest_snapshot()->set_job(status.id());
    status.mutable_newest_snapshot()->set_attempt(job.last_run_attempt());
    status.mutable_newest_snapshot()->set_step(facts.newest_complete_step);
  }
  return status;
}

v1::NodeStatus ViewNode(Cycle& c, const records::NodeRecord& node) {
  v1::NodeStatus status;
  status.set_name(node.name());
  status.set_boot_id(node.boot_id());
  status.set_address(node.address());
  std::string reason;
  status.set_state(StateOfNode(c, node, &reason));
  status.set_reason(reason);
  *status.mutable_devices() = node.devices();
  status.set_agent_version(node.agent_version());
  const auto facts = c.facts.nodes.find(node.name());
  if (facts != c.facts.nodes.end())
    status.set_beat_age_ms((c.now.mono_ns - facts->second.last_beat_ns) / kNsPerMs);
  std::set<std::string> held;
  for (const uint64_t id : c.txn.ActiveJobs()) {
    for (const auto& hold : c.txn.FindJob(id)->holds()) {
      if (hold.node() != node.name()) continue;
      status.add_jobs(id);
      held.insert(hold.device_ids().begin(), hold.device_ids().end());
    }
  }
  uint32_t free = 0;
  for (const auto& device : node.devices()) free += device.healthy() && !held.count(device.id());
  status.set_devices_free(free);
  return status;
}

}  // namespace holdfast::sched
