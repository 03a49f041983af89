// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/up/background.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"
#include "cli/up/supervisor.h"

namespace holdfast::cli {
namespace {

struct UpInvocation {
  UpOptions options;
  int owner_fd = -1;
  bool owner_removes_state = false;
  bool daemonise = false;
};

int Foreground(const RunDir& run_dir, SupervisorConfig config) {
  config.say = [](const std::string& text) { Hint(text); };
  config.hang_up_ends = true;
  config.on_ready = [&run_dir] {
    Hint(absl::StrCat("up: state ", run_dir.state(), ", scheduler unix:", run_dir.state(),
                      "/scheduler.sock"));
    Hint(
        "Ctrl-C cancels the jobs and ends everything; in another shell: holdfast submit -- "
        "hostname");
  };
  absl::Status failure;
  const int code = RunSupervisor(run_dir, std::move(config), &failure);
  if (!failure.ok()) {
    Fail(failure);
  } else {
    Hint("down");
  }
  return code;
}

int Daemonise(const RunDir& run_dir, PreparedUp up, const UpOptions& options, bool json) {
  auto background = StartInBackground(run_dir, std::move(up), options.nodes, Ownership());
  if (!background.ok()) return Fail(background.status());
  if (json) {
    PrintLine(nlohmann::ordered_json{
        {"state", run_dir.state()},
        {"endpoint", absl::StrCat("unix:", run_dir.state(), "/scheduler.sock")},
        {"pid", background->pid},
        {"nodes", options.nodes}}
                  .dump());
  }
  Hint(absl::StrCat("up: pid ", background->pid, ", state ", run_dir.state(), "; `holdfast down",
                    " --state ", run_dir.state(), "` ends it"));
  return kExitDone;
}

int Up(const Invocation& invocation, UpInvocation up) {
  if (const absl::Status bad = CheckUpOptions(up.options); !bad.ok()) return Fail(bad);
  auto state = StateDirectory(ReadSurroundings(invocation.state, ""));
  if (!state.ok()) return Fail(state.status());
  if (!up.options.store.empty())
    up.options.store = AbsolutePath(up.options.store, WorkingDirectory());
  if (!up.options.bin_dir.empty())
    up.options.bin_dir = AbsolutePath(up.options.bin_dir, WorkingDirectory());
  const RunDir run_dir(*state);
  up.options.owned = up.owner_fd >= 0;
  auto prepared = PrepareUp(run_dir, up.options);
  if (!prepared.ok()) return Fail(prepared.status());
  if (up.options.owned) {
    Ownership ownership;
    ownership.watched = UniqueFd(up.owner_fd);
    ownership.remove_state = up.owner_removes_state;
    BeOwned(run_dir, *std::move(prepared), std::move(ownership));
  }
  if (!up.daemonise) return Foreground(run_dir, std::move(prepared->config));
  return Daemonise(run_dir, *std::move(prepared), up.options, invocation.json);
}

}  // namespace

void AddUp(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "up", "Runs a scheduler and agents on this machine and keeps them running",
      "  holdfast up -d                                             one node, no devices\n"
      "  holdfast up --nodes 2 --gpus-per-node 2 --simulate -d      a simulated cluster\n"
      "  holdfast up --simulate --state /tmp/hf                     in the foreground; Ctrl-C ends "
      "it\n"
      "What dies is started again after 100 ms; what stays stopped or silent for 1 s is killed "
      "first.\n"
      "Drills: while <state>/run/hold/<daemon> exists (agent-n0), that daemon is not started "
      "again.\n");
  auto up = std::make_shared<UpInvocation>();
  verb.Option("--nodes", &up->options.nodes, "how many (default 1)");
  verb.Option("--gpus-per-node", &up->options.gpus_per_node,
              "simulated devices of each node (default 0)");
  verb.Flag("--simulate", &up->options.simulate, "nodes and devices of a simulated cluster");
  verb.Option("--store", &up->options.store, "directory of checkpoints (default <state>/store)");
  verb.Flag("-d,--detach", &up->daemonise, "go to the background when all is ready");
  verb.Option("--owner-fd", &up->owner_fd, "");  // hidden, as the next: `run` starts it again
  verb.Flag("--owner-removes-state", &up->owner_removes_state, "");
  verb.Option("--bin-dir", &up->options.bin_dir, "");  // hidden: tests and packages
  verb.Then([=] { invocation->run = [=] { return Up(*invocation, *up); }; });
}

}  // namespace holdfast::cli
