// SPDX-License-Identifier: Apache-2.0
// holdfast-keeper --dir DIR --job N [--max-ranks N] [--owner-fd N]
// Exit status: 0 after kQuit or SIGTERM, 2 usage, 4 when the directory cannot be served.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "agent/keeper/keeper.h"

namespace {

constexpr int kExitUsage = 2;
constexpr int kExitRefused = 4;
constexpr uint64_t kMaxRanksLimit = 64;
constexpr uint64_t kDescriptorMax = 1 << 20;

bool ParseNumber(const char* text, uint64_t low, uint64_t high, uint64_t* out) {
  char* end = nullptr;
  *out = strtoull(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0' && *out >= low && *out <= high;
}

bool ParseArgs(int argc, char** argv, holdfast::keeper::Options* options) {
  static const option kOptions[] = {
      {"dir", required_argument, nullptr, 'd'},
      {"job", required_argument, nullptr, 'j'},
      {"max-ranks", required_argument, nullptr, 'r'},
      {"owner-fd", required_argument, nullptr, 'o'},
      {nullptr, 0, nullptr, 0},
  };
  uint64_t number = 0;
  for (int c; (c = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (c == 'd') {
      options->dir = optarg;
    } else if (c == 'j' && ParseNumber(optarg, 1, ~0ull - 1, &number)) {
      options->job = number;
    } else if (c == 'r' && ParseNumber(optarg, 1, kMaxRanksLimit, &number)) {
      options->max_ranks = static_cast<uint32_t>(number);
    } else if (c == 'o' && ParseNumber(optarg, 3, kDescriptorMax, &number)) {
      options->owner_fd = static_cast<int>(number);
    } else {
      return false;
    }
  }
  return optind == argc && options->job != 0 && !options->dir.empty();
}

}  // namespace

int main(int argc, char** argv) {
  holdfast::keeper::Options options;
  if (!ParseArgs(argc, argv, &options)) {
    fprintf(stderr,
            "usage: holdfast-keeper --dir DIR --job N (1 or more) [--max-ranks N (1 to 64)] "
            "[--owner-fd N (an open pipe)]\n");
    return kExitUsage;
  }
  char* resolved = realpath(options.dir.c_str(), nullptr);
  if (resolved == nullptr) {
    fprintf(stderr, "holdfast-keeper: --dir %s: %m\n", options.dir.c_str());
    return kExitRefused;
  }
  options.dir = resolved;
  free(resolved);
  holdfast::keeper::Keeper keeper(options);
  return keeper.Start() ? keeper.Run() : kExitRefused;
}
