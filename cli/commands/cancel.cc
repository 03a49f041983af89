// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

int CancelAndWait(const Invocation& invocation, SchedulerClient* client, InterruptGuard* guard,
                  const std::string& id) {
  auto end = WaitForEnd(client, guard, id);
  if (!end.ok()) return Fail(end.status());
  if (invocation.json) PrintLine(ToJson(*end));
  Hint(absl::StrCat(id, " ", Short(end->state())));
  // What was asked for has happened, also when the job was done before the order reached it.
  return end->state() == v1::JOB_STATE_FAILED ? kExitJobFailed : kExitDone;
}

int Cancel(const Invocation& invocation, const std::string& job, bool wait) {
  InterruptGuard guard;
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  auto status = CancelJob(client->get(), job);
  if (!status.ok()) return Fail(status.status());
  const std::string id = ToString(JobId{status->id()});
  if (wait) return CancelAndWait(invocation, client->get(), &guard, id);
  if (invocation.json) return PrintLine(ToJson(*status)) ? kExitDone : kExitRefused;
  Hint(absl::StrCat(id, " ", Short(status->state()),
                    IsEnded(*status) ? "" : absl::StrCat("; see its end: holdfast wait ", id)));
  return kExitDone;
}

}  // namespace

void AddCancel(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "cancel", "Ends a job: TERM, 10 s, KILL",
                      "  holdfast cancel j-42\n"
                      "  holdfast cancel llama --wait      until no process of it is left\n");
  auto job = std::make_shared<std::string>();
  auto wait = std::make_shared<bool>(false);
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.Flag("--wait", wait.get(), "return when the job has ended");
  verb.Then([=] { invocation->run = [=] { return Cancel(*invocation, *job, *wait); }; });
}

}  // namespace holdfast::cli
