// SPDX-License-Identifier: Apache-2.0
#include "cli/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/subprocess.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

// Run as git runs its own: `holdfast ckpt ls` is `holdfast-ckpt ls`.
constexpr std::pair<const char*, const char*> kPassThrough[] = {
    {"ckpt", "holdfast-ckpt"}, {"data", "holdfast-data"}, {"train", "holdfast-worker"}};

constexpr char kDescription[] = R"(Keeps training jobs running.

Examples:
  holdfast up --nodes 2 --gpus-per-node 2 --simulate -d     a whole cluster on this machine
  holdfast submit --nodes 2 --gpus-per-node 2 -- python train.py
  holdfast submit -f job.yaml --wait                        exit code 1 when the job fails
  holdfast ps                                               what runs
  holdfast describe j-1                                     why it waits, what happened to it
  holdfast logs -f j-1
  holdfast look j-1                                         what its ranks here do and wait for
  holdfast down                                             cancels the jobs and ends the cluster
)";

constexpr char kFooter[] = R"(
Programs of their own:
  ckpt      looks into a store of checkpoints, with no scheduler (holdfast-ckpt)
  data      prepares training data (holdfast-data)
  train     the native trainer (holdfast-worker)

State: --state, else $HOLDFAST_STATE, else /var/lib/holdfast as root, else ~/.local/state/holdfast.
Scheduler: --endpoint, else $HOLDFAST_ENDPOINT, else unix:<state>/scheduler.sock.
Exit codes: 0 done, 1 the job failed, 2 usage, 3 not found, 4 refused, 5 unreachable.)";

int PassThrough(const char* program, int argc, char** argv) {
  auto path = FindProgram(program);
  if (!path.ok()) return Fail(path.status());
  std::vector<std::string> args = {*path};
  args.insert(args.end(), argv + 2, argv + argc);
  return Fail(BecomeProgram(args));
}

void AddAll(CLI::App* app, Invocation* invocation) {
  AddUp(app, invocation);
  AddDown(app, invocation);
  AddSubmit(app, invocation);
  AddRun(app, invocation);
  AddPs(app, invocation);
  AddDescribe(app, invocation);
  AddLogs(app, invocation);
  AddLook(app, invocation);
  AddLedger(app, invocation);
  AddModes(app, invocation);
  AddEvents(app, invocation);
  AddNotify(app, invocation);
  AddWait(app, invocation);
  AddCancel(app, invocation);
  AddRestart(app, invocation);
  AddSave(app, invocation);
  AddNodes(app, invocation);
  AddDrain(app, invocation);
  AddUncordon(app, invocation);
  AddConfirmDead(app, invocation);
  AddVersion(app, invocation);
}

// "unknown verb sumbit; did you mean submit?" instead of CLI11's "not expected".
int Usage(const CLI::App& app, const std::vector<std::string>& args, const CLI::ParseError& error) {
  std::vector<std::string> verbs = {"ckpt", "data", "train"};
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  const std::string first = args.empty() ? "" : args[0];
  const bool unknown = !first.empty() && first[0] != '-' &&
                       std::find(verbs.begin(), verbs.end(), first) == verbs.end();
  if (unknown) {
    const std::string nearest = proto::NearestName(first, verbs);
    Hint(absl::StrCat("holdfast: unknown verb ", first,
                      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
    Hint("`holdfast --help` lists the verbs");
    return kExitUsage;
  }
  std::string what = error.what();
  if (!what.empty() && what.back() == '.') what.pop_back();
  const std::string verb = first.empty() || first[0] == '-' ? "" : first + " ";
  Hint(absl::StrCat("holdfast: ", verb.empty() ? "" : first + ": ", what));
  if (first == "submit" && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    Hint("a command goes after --, as in: holdfast submit -- python train.py");
  }
  Hint(absl::StrCat("`holdfast ", verb, "--help` shows examples"));
  return kExitUsage;
}

}  // namespace

Verb AddVerb(CLI::App* app, Invocation* invocation, const std::string& name,
             const std::string& summary, const std::string& examples) {
  CLI::App* verb = app->add_subcommand(name, summary);
  verb->footer("");
  verb->add_option("--state", invocation->state, "state directory");
  verb->add_option("--endpoint", invocation->endpoint, "scheduler: unix:/path or host:port");
  verb->add_option("--timeout", invocation->timeout,
                   "how long to try to reach the scheduler (default 5s)");
  verb->add_flag("--json", invocation->json, "proto3 JSON with the original field names");
  // CLI11 shows the description first; the list of verbs above keeps the summary.
  verb->set_help_flag();
  verb->add_flag_callback(
      "-h,--help",
      [verb, summary, examples] {
        verb->description(absl::StrCat(summary, "\n\nExamples:\n", examples));
        throw CLI::CallForHelp();
      },
      "this help");
  return Verb(verb);
}

absl::StatusOr<std::unique_ptr<SchedulerClient>> OpenClient(const Invocation& invocation) {
  int64_t connect_ms = kConnectMsDefault;
  if (!invocation.timeout.empty()) {
    auto given = proto::ParseDurationMs(invocation.timeout, 1000);
    if (!given.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--timeout: \"", invocation.timeout, "\" is ", given.status().message()));
    }
    connect_ms = *given;
  }
  auto endpoint = Endpoint(ReadSurroundings(invocation.state, invocation.endpoint));
  if (!endpoint.ok()) return endpoint.status();
  return std::make_unique<SchedulerClient>(*endpoint, connect_ms);
}

int RunApp(int argc, char** argv) {
  for (const auto& [verb, program] : kPassThrough) {
    if (argc > 1 && std::string_view(argv[1]) == verb) return PassThrough(program, argc, argv);
  }
  Invocation invocation;
  std::vector<std::string> args;
  // The words every program answers to, beside the verbs' own form.
  const std::string_view first = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
  if ((first == "run" && (second == "-h" || second == "--help")) ||
      (first == "help" && second == "run")) {
    PrintLine(RunHelp());
    return kExitDone;
  }
  if (first == "--version" || first == "-V") {
    args.emplace_back("version");
    argv += 1, argc -= 1;
  } else if (first == "help") {
    if (argc > 2) args.emplace_back(argv[2]);
    args.emplace_back("--help");
    argc = 1;
  }
  // torchrun's command line is its own language: the first word that is no flag ends the flags.
  if (first == "run") {
    args.emplace_back("run");
    invocation.command.assign(argv + 2, argv + argc);
    argc = 1;
  }
  for (int i = 1; i < argc; ++i) {
    if (!invocation.has_dashes && std::string_view(argv[i]) == "--") {
      invocation.has_dashes = true;
    } else {
      (invocation.has_dashes ? invocation.command : args).emplace_back(argv[i]);
    }
  }
  CLI::App app{kDescription, "holdfast"};
  app.footer(kFooter);
  app.require_subcommand(1);
  AddAll(&app, &invocation);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    PrintLine(chosen.empty() ? app.help() : chosen[0]->help("holdfast"));
    return kExitDone;
  } catch (const CLI::ParseError& e) {
    return args.empty() ? (Hint(app.help()), kExitUsage) : Usage(app, args, e);
  }
  if (invocation.has_dashes && args[0] != "submit") {
    Hint(absl::StrCat("holdfast: ", args[0], " takes no command after --"));
    return kExitUsage;
  }
  return invocation.run();
}

}  // namespace holdfast::cli
