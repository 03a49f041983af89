// SPDX-License-Identifier: Apache-2.0
#include "proto/modes.h"

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

int SetModes(const Invocation& invocation, const std::string& job, const std::string& text) {
  const auto modes = proto::ParseModes(text);
  if (!modes.ok()) return Fail(Annotate(modes.status(), "modes"));
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::SetModesRequest request;
  request.set_idempotency_key(proto::NewIdempotencyKey());
  request.set_job(job);
  request.mutable_modes()->insert(modes->begin(), modes->end());
  auto changed = (*client)->Call(absl::StrCat("change the modes of ", job),
                                 &v1::Scheduler::Stub::SetModes, request);
  if (!changed.ok()) return Fail(changed.status());
  if (invocation.json) return PrintLine(ToJson(*changed)) ? kExitDone : kExitRefused;
  std::string told;
  for (const auto& [cause, mode] : *modes)
    absl::StrAppend(&told, told.empty() ? "" : ", ", cause, "=", proto::ModeName(mode));
  Hint(absl::StrCat(ToString(JobId{changed->id()}), ": ", told));
  return kExitDone;
}

}  // namespace

void AddModes(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "modes",
                      "Changes what is done about ranks of a job that hang or are stopped",
                      "  holdfast modes j-42 hang=act\n"
                      "  holdfast modes llama observe            all causes\n");
  auto job = std::make_shared<std::string>();
  auto modes = std::make_shared<std::string>();
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.Positional("modes", modes.get(), "observe, act, or by cause: hang=act,stopped=observe");
  verb.Then([=] { invocation->run = [=] { return SetModes(*invocation, *job, *modes); }; });
}

}  // namespace holdfast::cli
