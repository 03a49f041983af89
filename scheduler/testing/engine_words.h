// SPDX-License-Identifier: Apache-2.0
// Short names for tests of whole lives: the states of a job, and one node as a user sees it.
#ifndef HOLDFAST_SCHEDULER_TESTING_ENGINE_WORDS_H_
#define HOLDFAST_SCHEDULER_TESTING_ENGINE_WORDS_H_

#include <string>

#include "scheduler/testing/fake_cluster.h"

namespace holdfast::sched {

inline constexpr auto kQueued = v1::JOB_STATE_QUEUED;
inline constexpr auto kStarting = v1::JOB_STATE_STARTING;
inline constexpr auto kRunning = v1::JOB_STATE_RUNNING;
inline constexpr auto kRecovering = v1::JOB_STATE_RECOVERING;
inline constexpr auto kStopping = v1::JOB_STATE_STOPPING;
inline constexpr auto kCommitting = v1::JOB_STATE_COMMITTING;
inline constexpr auto kDone = v1::JOB_STATE_DONE;
inline constexpr auto kFailed = v1::JOB_STATE_FAILED;
inline constexpr auto kCancelled = v1::JOB_STATE_CANCELLED;

inline v1::NodeStatus NodeView(FakeCluster& c, const std::string& name) {
  for (const v1::ListNodesResponse all = c.engine().ListNodes(c.now());
       const auto& node : all.nodes()) {
    if (node.name() == name) return node;
  }
  return {};
}

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_TESTING_ENGINE_WORDS_H_
