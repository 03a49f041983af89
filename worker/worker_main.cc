// SPDX-License-Identifier: Apache-2.0
// holdfast-worker: one rank of the native trainer.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "worker/exit_codes.h"
#include "worker/launch.h"

int main(int argc, char** argv) {
  CLI::App app(
      "One rank of the native trainer. Jobs start it with `holdfast submit`; alone it trains on "
      "one rank.");
  std::string config, check;
  int64_t ranks = 1;
  auto* run = app.add_option("--config", config, "Train with this configuration (docs/train.md)");
  auto* only_check =
      app.add_option("--check", check,
                     "Only check this configuration and its data; prints nothing when all is well");
  app.add_option("--ranks", ranks, "With --check: ranks of the job")->needs(only_check);
  run->excludes(only_check);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : holdfast::worker::kExitUsage;
  }
  if (!check.empty()) {
    const absl::Status status = holdfast::worker::CheckConfiguration(check, ranks);
    if (status.ok()) return 0;
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return holdfast::worker::kExitUsage;
  }
  if (config.empty()) {
    std::fprintf(stderr,
                 "holdfast-worker: give --config FILE or --check FILE; --help explains them\n");
    return holdfast::worker::kExitUsage;
  }
  return holdfast::worker::RunWorker(config);
}
