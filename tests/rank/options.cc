// SPDX-License-Identifier: Apache-2.0
#include "tests/rank/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <map>
#include <string>

namespace holdfast::test_rank {
namespace {

constexpr char kUsage[] =
    "usage: holdfast-test-rank [--steps N] [--bytes B] [--step-ms M] [--seed S] [--log-bytes B] "
    "[--descriptors FILE] [--skip-update-at STEP]\n"
    "  [--exit-code-at STEP:CODE] [--signal-at STEP:SIGNO] [--nonsense-at STEP] [--hang-at STEP] "
    "[--spin-at STEP]\n"
    "  [--fault-rank R (0)] [--fault-attempt A (1; 0: every one)]\n";

bool Number(const char* text, uint64_t* out) {
  char* end = nullptr;
  *out = strtoull(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

// "STEP:NUMBER".
bool Pair(const char* text, uint64_t* step, int* number) {
  const char* colon = strchr(text, ':');
  uint64_t second = 0;
  if (colon == nullptr || !Number(std::string(text, colon).c_str(), step) ||
      !Number(colon + 1, &second) || second > 255)
    return false;
  *number = static_cast<int>(second);
  return *step > 0;
}

uint64_t EnvNumber(const char* name, uint64_t fallback) {
  const char* text = getenv(name);
  uint64_t value;
  return text != nullptr && Number(text, &value) ? value : fallback;
}

}  // namespace

bool ParseOptions(int argc, char** argv, Options* o) {
  const auto number = [](uint64_t* to) {
    return [to](const char* text) { return Number(text, to); };
  };
  uint64_t fault_rank = 0;
  const std::map<std::string, std::function<bool(const char*)>> known = {
      {"--steps", number(&o->steps)},
      {"--bytes", number(&o->bytes)},
      {"--step-ms", number(&o->step_ms)},
      {"--seed", number(&o->seed)},
      {"--log-bytes", number(&o->log_bytes)},
      {"--nonsense-at", number(&o->faults.nonsense_step)},
      {"--skip-update-at", number(&o->skip_update_step)},
      {"--hang-at", number(&o->faults.hang_step)},
      {"--spin-at", number(&o->faults.spin_step)},
      {"--fault-rank", number(&fault_rank)},
      {"--fault-attempt", number(&o->faults.attempt)},
      {"--exit-code-at",
       [o](const char* text) { return Pair(text, &o->faults.exit_step, &o->faults.exit_code); }},
      {"--signal-at",
       [o](const char* text) { return Pair(text, &o->faults.signal_step, &o->faults.signal); }},
      {"--descriptors", [o](const char* text) { return !(o->descriptors_file = text).empty(); }},
  };
  for (int i = 1; i < argc; i += 2) {
    const auto found = known.find(argv[i]);
    if (found == known.end() || i + 1 == argc || !found->second(argv[i + 1])) {
      fprintf(stderr, "holdfast-test-rank: %s %s: not understood\n%s", argv[i],
              i + 1 < argc ? argv[i + 1] : "(no value)", kUsage);
      return false;
    }
  }
  o->faults.rank = static_cast<uint32_t>(fault_rank);
  o->bytes = o->bytes / 8 * 8 < 64 ? 64 : o->bytes / 8 * 8;
  o->snapshot_every = EnvNumber("HOLDFAST_SNAPSHOT_EVERY", 1);
  o->persist_every = EnvNumber("HOLDFAST_PERSIST_EVERY", 0);
  if (const char* restore = getenv("HOLDFAST_RESTORE")) o->restore = restore;
  return true;
}

}  // namespace holdfast::test_rank
