// SPDX-License-Identifier: Apache-2.0
// What the scheduler wants of one node: a level, built whole from state and facts. Pure.
#ifndef HOLDFAST_SCHEDULER_ENGINE_DESIRED_H_
#define HOLDFAST_SCHEDULER_ENGINE_DESIRED_H_

#include <string>

#include "scheduler/engine/facts.h"
#include "scheduler/state.h"

namespace holdfast::sched {

// version and scheduler_epoch are the caller's.
v1::DesiredState BuildDesired(const State& state, const Facts& facts, const std::string& node);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_DESIRED_H_
