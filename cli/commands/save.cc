// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

int Save(const Invocation& invocation, const std::string& job) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::SaveJobRequest request;
  request.set_idempotency_key(proto::NewIdempotencyKey());
  request.set_job(job);
  auto saved = (*client)->Call(absl::StrCat("save ", job), &v1::Scheduler::Stub::SaveJob, request);
  if (!saved.ok()) return Fail(saved.status());
  if (invocation.json) return PrintLine(ToJson(*saved)) ? kExitDone : kExitRefused;
  const std::string id = ToString(JobId{saved->job()});
  Hint(absl::StrCat(id, " persists its next snapshot (attempt ", saved->attempt(),
                    "); `holdfast describe ", id, "` lists it"));
  return kExitDone;
}

}  // namespace

void AddSave(CLI::App* app, Invocation* invocation) {
  Verb verb =
      AddVerb(app, invocation, "save", "Makes a job persist its next snapshot as a checkpoint",
              "  holdfast save j-42\n");
  auto job = std::make_shared<std::string>();
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.Then([=] { invocation->run = [=] { return Save(*invocation, *job); }; });
}

}  // namespace holdfast::cli
