// SPDX-License-Identifier: Apache-2.0
// From what the scheduler wants to what the keeper starts: this node's ranks, their command, their
// environment. Pure.
#ifndef HOLDFAST_AGENT_CORE_JOB_SPEC_ON_NODE_H_
#define HOLDFAST_AGENT_CORE_JOB_SPEC_ON_NODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/core/reconcile.h"
#include "base/rank/start_spec.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

struct NodeFacts {
  std::string node;
  std::string state_uuid;
  std::string keeper_socket;   // of this job
  std::string log_dir;         // of this job
  std::string steps_log;       // of this job
  std::string worker_path;     // holdfast-worker beside the agent
  std::string tcp_store_path;  // holdfast-tcp-store beside the agent
  std::string standby_path;    // holdfast-standby.py beside it; empty: not there
  std::string ckpt_path;       // holdfast-ckpt beside the agent, for ranks that read a checkpoint
  uint16_t master_port = 0;    // of a command's attempt, wherever it is served; 0: none
  bool serves_master = false;  // it is served here
  uint32_t agent_uid = 0;
  uint32_t agent_gid = 0;
  bool simulated_devices = false;
  std::vector<std::string> environment;  // of this node's own, for every rank here: "K=V"
};

// The part of `placement` on `node`, or null.
const v1::NodePlacement* PlacementOn(const v1::Placement& placement, const std::string& node);

// "scratch", "snapshot:<step>.<attempt>" or "checkpoint:<store>:j-42@<step>.<attempt>".
std::string RestoreWord(const v1::StartPoint& point, const std::string& store);

// MASTER_ADDR of the attempt: the host of the placement's first node.
std::string MasterHost(const std::string& rendezvous_address);

// INVALID_ARGUMENT or PERMISSION_DENIED naming the field: no rank here, no command, another user
// while the agent is not root.
absl::StatusOr<rank::StartSpec> BuildStartSpec(const v1::DesiredJob& job, const NodeFacts& facts);

// The words of a DesiredJob that Reconcile decides by. A phase this version does not know is an
// error, not a guess.
absl::StatusOr<WantedJob> ToWanted(const v1::DesiredJob& job, const std::string& node);

// Value of "K" in a list of "K=V"; empty when absent.
std::string EnvValue(const std::vector<std::string>& env, const std::string& key);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_JOB_SPEC_ON_NODE_H_
