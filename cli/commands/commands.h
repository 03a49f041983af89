// SPDX-License-Identifier: Apache-2.0
// The verbs. Each file adds one: its options and help are told at once, what it does is left in
// Invocation::run, to be called when the whole command line is known to be right.
#ifndef HOLDFAST_CLI_COMMANDS_COMMANDS_H_
#define HOLDFAST_CLI_COMMANDS_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/verb.h"

namespace holdfast::cli {

struct Invocation {
  std::string state;     // --state
  std::string endpoint;  // --endpoint
  std::string timeout;   // --timeout, a duration
  bool json = false;
  bool has_dashes = false;           // a lone -- was given
  std::vector<std::string> command;  // what followed it
  std::function<int()> run;          // exit code
};

// What `holdfast run --help` prints: its command line is torchrun's, not CLI11's.
std::string RunHelp();

// A verb with the common options (--state, --endpoint, --timeout, --json) and help that begins with
// `examples`.
Verb AddVerb(CLI::App* app, Invocation* invocation, const std::string& name,
             const std::string& summary, const std::string& examples);
// The scheduler that the options and the environment name.
absl::StatusOr<std::unique_ptr<SchedulerClient>> OpenClient(const Invocation& invocation);

void AddCancel(CLI::App* app, Invocation* invocation);
void AddConfirmDead(CLI::App* app, Invocation* invocation);
void AddDescribe(CLI::App* app, Invocation* invocation);
void AddDown(CLI::App* app, Invocation* invocation);
void AddDrain(CLI::App* app, Invocation* invocation);
void AddEvents(CLI::App* app, Invocation* invocation);
void AddNotify(CLI::App* app, Invocation* invocation);
void AddLedger(CLI::App* app, Invocation* invocation);
void AddLogs(CLI::App* app, Invocation* invocation);
void AddLook(CLI::App* app, Invocation* invocation);
void AddModes(CLI::App* app, Invocation* invocation);
void AddNodes(CLI::App* app, Invocation* invocation);
void AddPs(CLI::App* app, Invocation* invocation);
void AddRestart(CLI::App* app, Invocation* invocation);
void AddRun(CLI::App* app, Invocation* invocation);
void AddSave(CLI::App* app, Invocation* invocation);
void AddSubmit(CLI::App* app, Invocation* invocation);
void AddUncordon(CLI::App* app, Invocation* invocation);
void AddUp(CLI::App* app, Invocation* invocation);
void AddVersion(CLI::App* app, Invocation* invocation);
void AddWait(CLI::App* app, Invocation* invocation);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_COMMANDS_COMMANDS_H_
