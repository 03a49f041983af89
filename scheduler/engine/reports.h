// SPDX-License-Identifier: Apache-2.0
// From an agent's words to facts. What is of an older attempt, of another node's rank or older than
// what is known is dropped here.
#ifndef HOLDFAST_SCHEDULER_ENGINE_REPORTS_H_
#define HOLDFAST_SCHEDULER_ENGINE_REPORTS_H_

#include <string>

#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

// A whole level. Jobs and ranks that a node knew and does not mention any more count as missing.
void AbsorbReport(Cycle& c, const std::string& node, const v1::NodeReport& report);

// An edge.
void AbsorbEvent(Cycle& c, const std::string& node, const v1::RankEvent& event);

// The node started anew: nothing that ran on it is left.
void AbsorbReboot(Cycle& c, const std::string& node);

// `desired` went out to this node. It may leave out orders for which it had no room.
void NoteDesiredSent(Facts& facts, const std::string& node, const v1::DesiredState& desired);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_REPORTS_H_
