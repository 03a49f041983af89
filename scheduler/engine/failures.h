// SPDX-License-Identifier: Apache-2.0
// Which ranks of the newest attempt have failed, as far as the facts tell.
#ifndef HOLDFAST_SCHEDULER_ENGINE_FAILURES_H_
#define HOLDFAST_SCHEDULER_ENGINE_FAILURES_H_

#include <vector>

#include "scheduler/core/first_cause.h"
#include "scheduler/engine/cycle.h"

namespace holdfast::sched {

// A rank that exited 0 although its last mark was inside a step, while peers go on, has ended early
// after this long; one without marks may be a program whose rank 0 alone has work at the end, and
// gets longer. A job that must end with a checkpoint of all ranks is not done by one rank that left
// before it marked anything: the others wait for it, and only its last save needs time.
inline constexpr int64_t kEarlyExitMarkedMs = 2'000;
inline constexpr int64_t kEarlyExitCheckpointedMs = 30'000;
inline constexpr int64_t kEarlyExitUnmarkedMs = 10 * 60 * 1000;

// Ends at `before_ns` or later are left out: they are our own doing.
std::vector<RankFailure> CollectFailures(Cycle& c, const records::JobRecord& job,
                                         int64_t before_ns);

bool AllRanksAre(const JobFacts& facts, uint32_t world_size, bool (*predicate)(const RankFact&));
bool RankHasStarted(const RankFact& f);  // runs, or ran
bool RankEndedWell(const RankFact& f);   // exit 0

uint64_t LargestStep(const JobFacts& facts);
uint64_t SmallestStep(const JobFacts& facts);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_ENGINE_FAILURES_H_
