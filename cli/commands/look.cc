// SPDX-License-Identifier: Apache-2.0
#include "cli/look/look.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/look/report.h"
#include "cli/output.h"
#include "cli/stop_flag.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kIntervalMsMin = 10;
constexpr int64_t kIntervalMsMax = 600'000;
constexpr char kBootIdFile[] = "/proc/sys/kernel/random/boot_id";

struct LookOptions {
  std::string job;
  std::string interval = "1s";
  int64_t rank = -1;  // all
};

absl::StatusOr<int64_t> IntervalOf(const std::string& text) {
  auto ms = proto::ParseDurationMs(text, 1000);
  if (!ms.ok() || *ms < kIntervalMsMin || *ms > kIntervalMsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--interval: \"", text, "\" is not a duration from 10ms to 10m, such as 500ms or 2s"));
  }
  return *ms;
}

// It names a running kernel: nodes in containers of one machine share it.
std::string BootId() {
  std::ifstream file(kBootIdFile);
  std::string id;
  std::getline(file, id);
  return id;
}

absl::Status CheckRuns(const v1::JobStatus& job) {
  const std::string id = ToString(JobId{job.id()});
  const std::string why = job.reason().empty() ? "" : absl::StrCat(" (", job.reason(), ")");
  if (IsEnded(job)) {
    return absl::FailedPreconditionError(absl::StrCat(id, " is ", Short(job.state()), why,
                                                      ": nothing of it runs; `holdfast describe ",
                                                      id, "` tells what happened"));
  }
  if (job.placement().nodes_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(id, " is ", Short(job.state()), why, ": it has no ranks yet"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlacedRank>> PlacedRanks(const v1::JobStatus& job,
                                                    const v1::ListNodesResponse& nodes,
                                                    int64_t wanted) {
  std::map<std::string, const v1::NodeStatus*> known;
  for (const v1::NodeStatus& node : nodes.nodes()) known[node.name()] = &node;
  const std::string boot_id = BootId();
  std::vector<PlacedRank> out;
  int64_t count = 0;
  for (const v1::NodePlacement& place : job.placement().nodes()) {
    const auto node = known.find(place.node());
    for (const v1::RankPlacement& rank : place.ranks()) {
      ++count;
      if (wanted >= 0 && rank.rank() != wanted) continue;
      PlacedRank placed{rank.rank(), place.node(), "", false};
      if (node != known.end()) {
        placed.address = node->second->address();
        placed.here = node->second->boot_id() == boot_id;
      }
      out.push_back(std::move(placed));
    }
  }
  if (!out.empty()) return out;
  return absl::InvalidArgumentError(absl::StrCat("--rank: ", wanted, " is not one of the ", count,
                                                 " ranks of ", ToString(JobId{job.id()})));
}

absl::StatusOr<LookedJob> LookAtJob(const Invocation& invocation, const LookOptions& options) {
  LookedJob out;
  HF_ASSIGN_OR_RETURN(out.interval_ms, IntervalOf(options.interval));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<SchedulerClient> client, OpenClient(invocation));
  v1::GetJobRequest get;
  get.set_job(options.job);
  HF_ASSIGN_OR_RETURN(const v1::JobStatus job, client->Call(absl::StrCat("look at ", options.job),
                                                            &v1::Scheduler::Stub::GetJob, get));
  HF_RETURN_IF_ERROR(CheckRuns(job));
  HF_ASSIGN_OR_RETURN(
      const v1::ListNodesResponse nodes,
      client->Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest()));
  HF_ASSIGN_OR_RETURN(const std::vector<PlacedRank> ranks, PlacedRanks(job, nodes, options.rank));
  out.id = ToString(JobId{job.id()});
  out.name = job.spec().name();
  out.state = Short(job.state());
  out.attempt = job.attempt();
  StopFlag never;
  out.look = LookAt(inspect::ProcFs(), out.id, ranks, out.interval_ms,
                    [&never](int64_t ms) { never.WaitMs(ms); });
  return out;
}

int Look(const Invocation& invocation, const LookOptions& options) {
  const auto job = LookAtJob(invocation, options);
  if (!job.ok()) return Fail(job.status());
  if (!PrintLine(invocation.json ? LookJson(*job) : LookText(*job))) return kExitRefused;
  if (!job->look.python_hint.empty()) Hint(absl::StrCat("holdfast: ", job->look.python_hint));
  const bool any = std::any_of(job->look.ranks.begin(), job->look.ranks.end(),
                               [](const LookedRank& rank) { return rank.pid != 0; });
  return any ? kExitDone : kExitNotFound;
}

}  // namespace

void AddLook(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "look",
                      "Looks from outside at a job's ranks on this machine: what they and the "
                      "processes below them do, read, write and wait for",
                      "  holdfast look j-42\n"
                      "  holdfast look llama --rank 3 --interval 5s\n"
                      "  holdfast look j-42 --json | jq -r '.ranks[] | "
                      "\"\\(.rank) \\(.judgement)\"'\n");
  auto options = std::make_shared<LookOptions>();
  verb.Positional("job", &options->job, "j-42 or a name");
  verb.NonNegativeOption("--rank", &options->rank, "only this one");
  verb.Option("--interval", &options->interval, "how long to measure rates and waits (default 1s)");
  verb.Then([=] { invocation->run = [=] { return Look(*invocation, *options); }; });
}

}  // namespace holdfast::cli
