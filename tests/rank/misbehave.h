// SPDX-License-Identifier: Apache-2.0
// The faults that holdfast-test-rank commits on itself.
#ifndef HOLDFAST_TESTS_RANK_MISBEHAVE_H_
#define HOLDFAST_TESTS_RANK_MISBEHAVE_H_

#include <cstdint>

#include "tests/rank/options.h"

namespace holdfast::test_rank {

// Does not return when the fault ends or hangs the process.
void Misbehave(const Faults& faults, uint32_t rank, uint64_t attempt, uint64_t step);

}  // namespace holdfast::test_rank

#endif  // HOLDFAST_TESTS_RANK_MISBEHAVE_H_
