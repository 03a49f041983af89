// SPDX-License-Identifier: Apache-2.0
// Exit codes of holdfast-worker: the scheduler and people tell a cause from its victims by them.
// docs/train.md lists them too.
#ifndef HOLDFAST_WORKER_EXIT_CODES_H_
#define HOLDFAST_WORKER_EXIT_CODES_H_

namespace holdfast::worker {

inline constexpr int kExitDone =
    0;  // the last step is finished, or a stop was asked for; the last state is sealed
inline constexpr int kExitInternal = 1;  // anything else
inline constexpr int kExitUsage = 2;     // command line or configuration
inline constexpr int kExitStale = 70;  // a newer attempt exists: this process applied nothing more
inline constexpr int kExitPeerLost =
    71;  // a collective failed or timed out: a victim, not the cause
inline constexpr int kExitRestore =
    72;                               // the state to start from could not be read or did not verify
inline constexpr int kExitData = 73;  // training data missing, cut short or outside the vocabulary
inline constexpr int kExitSnapshot = 74;  // a snapshot could not be sealed
inline constexpr int kExitNumeric = 75;  // loss or gradient is not finite; the step was not applied

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_EXIT_CODES_H_
