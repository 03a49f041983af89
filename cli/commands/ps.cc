// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

absl::StatusOr<v1::ListJobsResponse> ListAll(SchedulerClient* client, bool all) {
  v1::ListJobsResponse jobs;
  v1::ListJobsRequest request;
  request.set_all(all);
  do {
    auto page = client->Call("list the jobs", &v1::Scheduler::Stub::ListJobs, request);
    if (!page.ok()) return page.status();
    jobs.mutable_jobs()->MergeFrom(page->jobs());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return jobs;
}

std::string TableOf(const v1::ListJobsResponse& jobs) {
  Table table({"JOB", "NAME", "STATE", "ATTEMPT", "STEP", "LOSS", "RESTARTS", "NODES", "SUBMITTED",
               "REASON"});
  const int64_t now = SystemClock().WallNs();
  for (const v1::JobStatus& job : jobs.jobs()) {
    table.Add({ToString(JobId{job.id()}), job.spec().name(), Short(job.state()),
               absl::StrCat(job.attempt()), job.step() == 0 ? "-" : absl::StrCat(job.step()),
               job.step() == 0 ? "-" : absl::StrFormat("%.4f", job.loss()),
               absl::StrCat(job.restarts()), Text(job.placement()),
               Ago(job.submitted_wall_ns(), now), job.reason()});
  }
  return table.Text();
}

int Ps(const Invocation& invocation, bool all) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  auto jobs = ListAll(client->get(), all);
  if (!jobs.ok()) return Fail(jobs.status());
  if (invocation.json) return PrintLine(ToJson(*jobs)) ? kExitDone : kExitRefused;
  if (jobs->jobs_size() == 0) {
    Hint(all ? "no jobs yet; submit one with `holdfast submit -- COMMAND`"
             : "no live jobs (`holdfast ps -a` shows ended ones)");
    return kExitDone;
  }
  return PrintLine(TableOf(*jobs)) ? kExitDone : kExitRefused;
}

}  // namespace

void AddPs(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "ps", "Lists the jobs that live",
      "  holdfast ps\n"
      "  holdfast ps -a --json | jq -r '.jobs[] | select(.state==\"JOB_STATE_FAILED\") | .id'\n");
  auto all = std::make_shared<bool>(false);
  verb.Flag("-a,--all", all.get(), "ended ones too");
  verb.Then([=] { invocation->run = [=] { return Ps(*invocation, *all); }; });
}

}  // namespace holdfast::cli
