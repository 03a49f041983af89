// SPDX-License-Identifier: Apache-2.0
// Every maximum that more than one component must agree on, with its unit in its name. What is
// reached is refused with RESOURCE_EXHAUSTED or INVALID_ARGUMENT that names the limit; nothing
// grows without one of these.
#ifndef HOLDFAST_BASE_LIMITS_H_
#define HOLDFAST_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace holdfast {

inline constexpr int64_t kNodeLeaseMs =
    2500;  // no beat for this long: suspect; then neighbours are asked
inline constexpr int64_t kBeatIntervalMs = 500;
inline constexpr int64_t kFenceMsDefault = 30'000;
inline constexpr int64_t kFenceMarginMs = 5'000;
inline constexpr int kWitnessesMax = 5;
inline constexpr int64_t kStopGraceMs = 10'000;  // TERM to KILL
inline constexpr int64_t kStoppedRankGraceMs =
    400;  // stopped for less is healthy (STOP and CONT within 300 ms)
inline constexpr int64_t kVictimWindowMs =
    2'000;  // ranks that die this soon after a root cause are its victims

inline constexpr int kRanksPerNodeMax = 64;
inline constexpr int kNodesPerJobMax = 4096;
inline constexpr int kJobsMax = 100'000;
inline constexpr int kNodesMax = 10'000;
inline constexpr int kEnvEntriesMax = 4096;
inline constexpr int kArgsMax = 4096;
inline constexpr int64_t kSpecBytesMax = 1 << 20;
inline constexpr int64_t kRpcMessageBytesMax = 16 << 20;
// A commit record travels whole in orders to agents, beside other orders.
inline constexpr size_t kCommitRecordBytesMax = 8 << 20;
inline constexpr int64_t kStreamChunkBytes = 1 << 20;

inline constexpr int64_t kStoreKeyBytesMax = 1024;
inline constexpr int64_t kStoreValueBytesMax = 60 << 10;
inline constexpr int64_t kStoreKeysMax = 1 << 20;

inline constexpr int64_t kLogBytesPerRankDefault = 64 << 20;
inline constexpr int64_t kFirstFailureHeadBytes = 64 << 10;
inline constexpr int64_t kFirstFailureTailBytes = 1 << 20;
inline constexpr int kEventsKeptMax = 100'000;

}  // namespace holdfast

#endif  // HOLDFAST_BASE_LIMITS_H_
