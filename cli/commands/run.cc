// SPDX-License-Identifier: Apache-2.0
// `holdfast run`: the ranks of one machine under the whole of Holdfast, with nothing set up before
// and nothing left behind. A scheduler and an agent of its own (the supervisor of `up`, in a
// process that ends with this one) live in a directory of their own; this process submits the job,
// shows its output and waits.
#include <signal.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/guest/guest.h"
#include "cli/guest/plan.h"
#include "cli/log_reader.h"
#include "cli/output.h"
#include "cli/run_narrator.h"
#include "cli/run_request.h"
#include "cli/state_dir.h"
#include "cli/submission.h"
#include "cli/up/own_cluster.h"
#include "cli/wait.h"
#include "proto/job_spec.h"
#include "proto/modes.h"
#include "proto/text.h"

extern char** environ;

namespace holdfast::cli {
namespace {

constexpr size_t kNameCharsMax = 40;
constexpr char kRunSummary[] = "Runs a script on this machine, in torchrun's place";

// From here on an interrupt waits for its InterruptGuard: a start that is under way is undone in
// order.
class SignalHold {
 public:
  SignalHold() {
    const sigset_t set = InterruptSignals();
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~SignalHold() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalHold(const SignalHold&) = delete;
  SignalHold& operator=(const SignalHold&) = delete;

 private:
  sigset_t before_{};
};

std::string NameOf(const RunRequest& request) {
  if (!request.name.empty()) return request.name;
  const std::string file = std::filesystem::path(request.program[0]).filename().string();
  return proto::JobNameOf(file.substr(0, kNameCharsMax), "run");
}

// All of the caller's environment, as torchrun passes it on, but what is the rank's own.
std::vector<std::string> EnvironmentOf(const RunRequest& request) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (!proto::IsEnvironmentName(name) || proto::IsReservedEnvironment(name)) continue;
    if (absl::StartsWith(name, "HOLDFAST_")) continue;  // of a run around this one
    if (!proto::IsUtf8(text)) {
      Hint(absl::StrCat("holdfast: ", name, " is not passed on: its value is not UTF-8"));
      continue;
    }
    out.push_back(text);
  }
  if (!request.role.empty()) out.push_back(absl::StrCat("ROLE_NAME=", request.role));
  return out;
}

absl::StatusOr<v1::JobSpec> SpecOf(const RunRequest& request) {
  Submission submission;
  HF_ASSIGN_OR_RETURN(submission.command, CommandOf(request));
  submission.name = NameOf(request);
  submission.ranks_per_node = absl::StrCat(request.ranks);
  submission.grace = request.grace;
  submission.time_limit = request.time_limit;
  submission.log_bytes = request.log_limit;
  submission.standby = request.no_python ? "none" : request.standby;
  submission.modes = "observe";
  submission.fence_after = request.fence_after;
  if (request.max_restarts.has_value()) submission.restarts = absl::StrCat(*request.max_restarts);
  submission.environment = EnvironmentOf(request);
  HF_ASSIGN_OR_RETURN(v1::JobSpec spec, BuildSpec(submission));
  if (!request.modes.empty()) {
    const auto modes = proto::ParseModes(request.modes);
    if (!modes.ok()) return Annotate(modes.status(), "--modes");
    for (const auto& [cause, mode] : *modes) (*spec.mutable_modes())[cause] = mode;
  }
  spec.set_program_restarts(request.max_restarts.has_value());  // who counts them means all of them
  return spec;
}

// What ended the run, and whether the scheduler can still end the job in order.
struct Outcome {
  int code = kExitDone;
  bool cancel = true;
};

// Shows the output to its end. The first interrupt cancels the job (TERM, 10 s, KILL) and goes on
// showing what its ranks still say; the second kills them.
Outcome ShowToTheEnd(SchedulerClient* client, InterruptGuard* guard, const OwnCluster& cluster,
                     const RunRequest& request, const std::string& id) {
  LogOptions options;
  options.job = id;
  options.follow = true;
  options.tell_end = false;  // the job's own end is told
  options.ranks = request.shown_ranks;
  LogReader reader(client, guard, options, /*json=*/false, /*with_rank=*/request.ranks > 1);
  const int code = reader.Run();
  if (code != kExitInterrupted) return {code, true};
  if (const absl::Status lost = cluster.GivenUp(); !lost.ok()) return {Fail(lost), false};
  guard->Rearm();  // first: who reads the next line may answer it at once
  Hint("holdfast: interrupted: the ranks get TERM, and KILL after 10 s; again to kill them now");
  if (auto cancelled = CancelJob(client, id); !cancelled.ok()) {
    Hint(absl::StrCat("holdfast: ", cancelled.status().message(), "; its ranks are killed"));
    return {kExitInterrupted, false};
  }
  KeepLedger(client, id);  // a hang is often ended so; after the second one nobody could be asked
  return {kExitInterrupted, reader.Run() != kExitInterrupted};
}

Outcome RunJob(SchedulerClient* client, InterruptGuard* guard, const OwnCluster& cluster,
               const RunRequest& request, const v1::JobSpec& spec) {
  if (guard->interrupted()) return {kExitInterrupted, true};
  v1::SubmitJobRequest submit;
  submit.set_idempotency_key(proto::NewIdempotencyKey());
  *submit.mutable_spec() = spec;
  auto submitted = client->Call("submit the job", &v1::Scheduler::Stub::SubmitJob, submit);
  if (!submitted.ok()) return {Fail(submitted.status()), true};
  const std::string id = ToString(JobId{submitted->job()});
  const RunNarrator narrator(client, id, request.notify);
  const Outcome shown = ShowToTheEnd(client, guard, cluster, request, id);
  if (shown.code == kExitInterrupted || !shown.cancel) return shown;
  // What could not be shown does not decide how the job ended.
  auto end = WaitForEnd(client, guard, id);
  if (guard->interrupted()) return {kExitInterrupted, cluster.GivenUp().ok()};
  if (!end.ok()) return {Fail(end.status()), true};
  TellEnd(*end);
  KeepLedger(client, id);
  return {ExitCodeOfEnd(*end), true};
}

int Run(const Invocation& invocation) {
  auto request = ParseRun(invocation.command, ReadMachineSize());
  if (!request.ok()) return Fail(request.status());
  auto guest = PlanGuest(ProcessEnvironment(), WorkingDirectory(), *request);
  if (!guest.ok()) return Fail(guest.status());
  if (guest->has_value()) {
    auto guest_spec = SpecOf(*request);
    if (!guest_spec.ok()) return Fail(guest_spec.status());
    return RunGuest(**guest, *request, *std::move(guest_spec));
  }
  for (const std::string& sentence : request->without_effect)
    Hint(absl::StrCat("holdfast: ", sentence));
  auto spec = SpecOf(*request);
  if (!spec.ok()) return Fail(spec.status());
  const SignalHold hold;
  auto state = OwnStateDir::Make(request->state);
  if (!state.ok()) return Fail(state.status());
  auto cluster = OwnCluster::Start(*state);
  if (!cluster.ok()) {
    state->Settle(/*keep=*/false, "");  // what there is to know stands in the error
    return Fail(cluster.status());
  }
  Outcome outcome;
  {
    InterruptGuard guard;
    (*cluster)->Watch([&guard] { guard.Interrupt(); });
    SchedulerClient client(absl::StrCat("unix:", state->path(), "/scheduler.sock"),
                           kConnectMsDefault);
    outcome = RunJob(&client, &guard, **cluster, *request, *spec);
    (*cluster)->End(outcome.cancel);
  }
  state->Settle(outcome.code != kExitDone && outcome.code != kExitInterrupted, "logs and state");
  return outcome.code;
}

}  // namespace

std::string RunHelp() {
  return absl::StrCat(
      kRunSummary,
      "\n\nUsage: holdfast run [FLAGS] SCRIPT [ITS ARGUMENTS]\n\n"
      "Examples:\n"
      "  holdfast run --nproc-per-node 4 train.py --epochs 3      torchrun's flags; see "
      "docs/torchrun.md\n"
      "  holdfast run --nproc-per-node gpu -m my.trainer          one rank for each GPU\n"
      "  holdfast run --no-python --nproc-per-node 2 ./program\n"
      "A rank that dies is named, the others are stopped, and all start again with a fresh store, "
      "at most --max-restarts times.\n"
      "Ctrl-C ends all. Nothing has to run before and nothing is left behind. Ranks have no "
      "standard "
      "input.\n\n",
      RunFlagsHelp());
}

void AddRun(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "run", kRunSummary, "");
  verb.Then([=] { invocation->run = [=] { return Run(*invocation); }; });
}

}  // namespace holdfast::cli
