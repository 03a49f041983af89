// SPDX-License-Identifier: Apache-2.0
// What an agent is told at its start, and the paths that follow from it.
#ifndef HOLDFAST_AGENT_NODE_OPTIONS_H_
#define HOLDFAST_AGENT_NODE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/ids.h"

namespace holdfast::agent {

struct NodeOptions {
  std::string node;
  std::string state_dir;  // of this node; absolute
  std::string jobs_dir;   // absolute; <jobs_dir>/j-42/steps.jsonl
  std::string scheduler;  // endpoint
  std::string devices;    // for MakeDeviceProvider
  std::string listen;     // HOST:PORT, empty: the Unix socket only
  std::string key_file;   // of the run; empty: none
  std::string
      run_key;  // what is in it: asked of callers over TCP, given to other agents and the scheduler
  std::string address;  // where other agents reach this one
  std::string boot_id;
  uint64_t epoch = 0;
  bool predecessor_stopped =
      false;  // the last agent of this state directory was stopped in order (or none was there)
  std::vector<std::string> environment;  // "K=V" that every rank here gets (IsNodeEnvironment)
  std::string keeper_binary;
  std::string worker_binary;
  std::string tcp_store_binary;
  std::string standby_script;  // empty: not installed
  std::string ckpt_binary;
  uint32_t uid = 0, gid = 0;
  // A pipe's read end for the keepers, which end some time after its writer is gone; -1: none. For
  // a cluster that belongs to one process, as `holdfast run` has it.
  int owner_fd = -1;

  std::string KeepersDir() const { return JoinPath(state_dir, "keepers"); }
  std::string KeeperDir(JobId job) const { return JoinPath(KeepersDir(), ToString(job)); }
  std::string JobDir(JobId job) const { return JoinPath(jobs_dir, ToString(job)); }
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_NODE_OPTIONS_H_
