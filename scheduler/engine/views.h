// SPDX-License-Identifier: Apache-2.0
// What users see of jobs and nodes: the stored record, with what is known newer laid over it. Pure.
#ifndef HOLDFAST_SCHEDULER_ENGINE_VIEWS_H_
#define HOLDFAST_SCHEDULER_ENGINE_VIEWS_H_

#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

v1::JobStatus ViewJob(const records::JobRecord& job, const Facts& facts);
v1::NodeStatus ViewNode(Cycle& c, const records::NodeRecord& node);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_VIEWS_H_
