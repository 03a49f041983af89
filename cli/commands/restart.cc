// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

int Restart(const Invocation& invocation, const std::string& job, uint64_t from_step) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::GetJobRequest get;
  get.set_job(job);
  auto before = (*client)->Call(absl::StrCat("look at ", job), &v1::Scheduler::Stub::GetJob, get);
  if (!before.ok()) return Fail(before.status());
  v1::RestartJobRequest request;
  request.set_idempotency_key(proto::NewIdempotencyKey());
  request.set_job(ToString(JobId{before->id()}));
  // If a recovery comes first, the job has restarted already and must not do so twice.
  request.set_expected_attempt(before->attempt());
  request.set_from_step(from_step);
  auto status =
      (*client)->Call(absl::StrCat("restart ", job), &v1::Scheduler::Stub::RestartJob, request);
  if (!status.ok()) return Fail(status.status());
  if (invocation.json) return PrintLine(ToJson(*status)) ? kExitDone : kExitRefused;
  Hint(absl::StrCat(request.job(), " ", Short(status->state()), ", attempt ", status->attempt()));
  return kExitDone;
}

}  // namespace

void AddRestart(CLI::App* app, Invocation* invocation) {
  Verb verb =
      AddVerb(app, invocation, "restart", "Starts all ranks of a job anew",
              "  holdfast restart j-42                from its newest snapshot or checkpoint\n"
              "  holdfast restart j-42 --from 1000    from the checkpoint of step 1000\n");
  auto job = std::make_shared<std::string>();
  auto from = std::make_shared<uint64_t>(0);
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.PositiveOption("--from", from.get(), "a step with a committed checkpoint");
  verb.Then([=] { invocation->run = [=] { return Restart(*invocation, *job, *from); }; });
}

}  // namespace holdfast::cli
