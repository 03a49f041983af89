// SPDX-License-Identifier: Apache-2.0
// Exit codes by which a rank that uses the rank interface says whose fault its end is; the
// scheduler tells causes from victims by them. docs/formats/rank.md lists them.
#ifndef HOLDFAST_BASE_RANK_EXIT_CODE_H_
#define HOLDFAST_BASE_RANK_EXIT_CODE_H_

namespace holdfast::rank {

inline constexpr int kExitStale = 70;     // a newer attempt exists: nothing more was applied
inline constexpr int kExitPeerLost = 71;  // a collective failed or timed out: a victim
inline constexpr int kExitRestore = 72;   // the state to start from could not be read
inline constexpr int kExitCorrupt = 76;   // the state to start from was read and is damaged

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_EXIT_CODE_H_
