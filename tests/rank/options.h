// SPDX-License-Identifier: Apache-2.0
// Command line and environment of holdfast-test-rank.
#ifndef HOLDFAST_TESTS_RANK_OPTIONS_H_
#define HOLDFAST_TESTS_RANK_OPTIONS_H_

#include <cstdint>
#include <string>

namespace holdfast::test_rank {

// A fault strikes one rank in one attempt, before the update of its step. Step 0: never.
struct Faults {
  uint32_t rank = 0;
  uint64_t attempt = 1;  // 0: every attempt
  uint64_t exit_step = 0;
  int exit_code = 0;
  uint64_t signal_step = 0;
  int signal = 0;
  uint64_t nonsense_step = 0;
  uint64_t hang_step = 0;
  uint64_t spin_step = 0;
};

struct Options {
  uint64_t steps = 10;
  uint64_t bytes = 1 << 20;  // state of one rank
  uint64_t step_ms = 0;
  uint64_t seed = 1;
  uint64_t log_bytes = 0;         // printed each step
  uint64_t skip_update_step = 0;  // whose update is left out; 0: none
  std::string descriptors_file;   // where to list the descriptors that were open at start
  Faults faults;
  // From the environment.
  uint64_t snapshot_every = 1;  // 0: never
  uint64_t persist_every = 0;
  std::string restore;
};

// False after printing what is wrong, and the usage.
bool ParseOptions(int argc, char** argv, Options* out);

}  // namespace holdfast::test_rank

#endif  // HOLDFAST_TESTS_RANK_OPTIONS_H_
