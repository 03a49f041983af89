// SPDX-License-Identifier: Apache-2.0
// Exit codes of holdfast-worker: the scheduler and people tell a cause from its victims by them.
// docs/train.md lists them too.
#ifndef HOLDFAST_WORKER_EXIT_CODES_H_
#define HOLDFAST_WORKER_EXIT_CODES_H_

#include "base/rank/exit_code.h"

namespace holdfast::worker {

inline constexpr int kExitDone = 0;  // the last step is done, or a stop was asked for and sealed
inline constexpr int kExitInternal = 1;  // anything else
inline constexpr int kExitUsage = 2;     // command line or configuration
inline constexpr int kExitStale = rank::kExitStale;
inline constexpr int kExitPeerLost = rank::kExitPeerLost;
inline constexpr int kExitRestore = rank::kExitRestore;
inline constexpr int kExitCorrupt = rank::kExitCorrupt;
inline constexpr int kExitData = 73;      // training data missing, cut short or out of vocabulary
inline constexpr int kExitSnapshot = 74;  // a snapshot could not be sealed
inline constexpr int kExitNumeric = 75;  // loss or gradient is not finite; the step was not applied

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_EXIT_CODES_H_
