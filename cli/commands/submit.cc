// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/submission.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr char kExamples[] =
    "  holdfast submit -- hostname\n"
    "  holdfast submit --nodes 2 --gpus-per-node 8 --name llama -- python train.py --lr 3e-4\n"
    "  holdfast submit --nodes 2 --gpus-per-node 2 --trainer llama.yaml --persist-every 20 --wait\n"
    "  holdfast submit -f job.yaml --nodes 4              flags win over the file\n"
    "  holdfast submit -f job.yaml --from j-7@1000        start from a committed checkpoint\n"
    "The job's id alone is written to stdout. docs/job.md lists the fields of a job file.\n";

struct SubmitOptions {
  Submission submission;
  std::string key;
  bool wait = false;
  bool dry_run = false;
};

void Report(const v1::SubmitJobResponse& response, bool json) {
  const std::string id = ToString(JobId{response.job()});
  PrintLine(json ? ToJson(response) : id);
  const v1::JobStatus& status = response.status();
  if (status.state() == v1::JOB_STATE_QUEUED && !status.reason().empty())
    Hint(absl::StrCat(id, " waits: ", status.reason()));
  Hint(absl::StrCat("follow it with: holdfast logs -f ", id));
}

int Submit(const Invocation& invocation, const SubmitOptions& options) {
  auto spec = BuildSpec(options.submission);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status trainer = CheckTrainer(*spec); !trainer.ok()) return Fail(trainer);
  InterruptGuard guard;
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::SubmitJobRequest request;
  request.set_idempotency_key(options.key.empty() ? proto::NewIdempotencyKey() : options.key);
  *request.mutable_spec() = *std::move(spec);
  request.set_validate_only(options.dry_run);
  auto response = (*client)->Call("submit the job", &v1::Scheduler::Stub::SubmitJob, request);
  if (!response.ok()) return Fail(response.status());
  if (options.dry_run) {
    if (invocation.json) PrintLine(ToJson(request.spec()));
    Hint("the job is valid; nothing was submitted");
    return kExitDone;
  }
  Report(*response, invocation.json);
  if (!options.wait) return kExitDone;
  return WaitAndReport(client->get(), &guard, ToString(JobId{response->job()}), invocation.json);
}

void AddSpecOptions(Verb verb, Submission* s) {
  verb.Option("-f,--file", &s->file, "job file (YAML); - reads stdin");
  verb.Option("--name", &s->name, "default: from what runs");
  verb.Option("--nodes", &s->nodes, "how many (default 1)");
  verb.Option("--gpus-per-node", &s->gpus_per_node,
              "one rank for each; 0 (default): one rank a node");
  verb.Option("--ranks-per-node", &s->ranks_per_node, "without GPUs: how many ranks (default 1)");
  verb.Option("--trainer", &s->trainer,
              "configuration of the native trainer, instead of a command");
  verb.Option("--workdir", &s->working_directory, "where the ranks start (default: here)");
  verb.Option("--env", &s->environment, "NAME=VALUE, or NAME to pass yours on; several times");
  verb.Option("--snapshot-every", &s->snapshot_every, "steps between snapshots in memory");
  verb.Option("--persist-every", &s->persist_every,
              "steps between checkpoints in the store; a multiple of the above");
  verb.Flag("--expects-checkpoints", &s->expects_checkpoints,
            "DONE needs a checkpoint of the last step (always for a trainer)");
  verb.Option("--from", &s->from, "start from this committed checkpoint: j-7@1000 or j-7@1000.2");
  verb.Option("--modes", &s->modes,
              "what is done about ranks that hang or are stopped: observe, act, or by cause as in "
              "hang=act,stopped=observe (default: as the scheduler says)");
  verb.Option("--standby", &s->standby,
              "warm standbys of a Python command: auto, or the modules they import (default none)");
  verb.Option("--store", &s->store, "directory of its checkpoints (default: the scheduler's)");
  verb.Option("--restarts", &s->restarts, "restart budget (default 100)");
  verb.Option("--fence", &s->fence,
              "commit or witness: when a lost node's ranks may start elsewhere");
  verb.Option("--fence-after", &s->fence_after,
              "fence: witness, how long a node may be cut off (default 30s)");
  verb.Option("--grace", &s->grace,
              "time to save before preemption, drain or time limit end it (default 30s)");
  verb.Option("--time-limit", &s->time_limit, "e.g. 12h (default: none)");
  verb.Option("--hang-limit", &s->hang_limit,
              "a rank silent for longer is stuck (default: no limit)");
  verb.Option("--log-bytes", &s->log_bytes, "kept of each rank's log (default 64MiB)");
  verb.Option("--priority", &s->priority, "higher goes first (default 0)");
  verb.Flag(
      "--requeue", [s] { s->requeue = true; }, "run again after preemption (default)");
  verb.Flag(
      "--no-requeue", [s] { s->requeue = false; }, "end when preempted");
}

}  // namespace

void AddSubmit(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "submit", "Submits a job: a file, flags, a command after --",
                      kExamples);
  auto options = std::make_shared<SubmitOptions>();
  AddSpecOptions(verb, &options->submission);
  verb.Flag("--wait", &options->wait, "return when it has ended: 0 DONE, 1 FAILED or CANCELLED");
  verb.Flag("--dry-run", &options->dry_run, "check it, submit nothing");
  verb.Option("--key", &options->key, "idempotency key: the same key gives the same job");
  verb.Then([=] {
    options->submission.command = invocation->command;
    invocation->run = [=] { return Submit(*invocation, *options); };
  });
}

}  // namespace holdfast::cli
