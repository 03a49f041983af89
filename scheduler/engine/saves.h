// SPDX-License-Identifier: Apache-2.0
// Saves: collecting what ranks have PREPARED, the commit point, and the orders to the nodes that
// follow from it.
#ifndef HOLDFAST_SCHEDULER_ENGINE_SAVES_H_
#define HOLDFAST_SCHEDULER_ENGINE_SAVES_H_

#include <string>

#include "google/protobuf/repeated_field.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

inline constexpr size_t kOrdersPerNodeMax =
    64;  // of one job; more wait until these are carried out

// `whole_level`: what the node does not list is settled there.
void AbsorbPrepared(Cycle& c, const std::string& node,
                    const google::protobuf::RepeatedPtrField<v1::PreparedSave>& prepared,
                    bool whole_level);

// Commits every whole set, gives up every set with an error. The commit record is durable when the
// transaction is.
void SettleSaves(Cycle& c, uint64_t job);

// Before another attempt starts, and after the end: what is not whole by now never will be.
void AbortOpenSaves(Cycle& c, uint64_t job, const std::string& why);

// A new complete snapshot protects its buffers; tells the nodes.
void NoteCompleteSnapshots(Cycle& c, const records::JobRecord& job);

// Orders a committed checkpoint to be written by every node of the placement, again after a restart
// of the scheduler.
void RepeatCommitOrders(Cycle& c, const records::JobRecord& job, const Point& point);

// Newest committed checkpoint on the job's line; attempt 0: none.
v1::CheckpointRef NewestCheckpoint(Cycle& c, const records::JobRecord& job);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_SAVES_H_
