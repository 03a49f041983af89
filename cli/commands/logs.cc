// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/time_util.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/log_reader.h"
#include "cli/output.h"
#include "proto/job_spec.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

size_t RanksOf(const v1::JobStatus& job) {
  return static_cast<size_t>(std::max(1u, job.spec().nodes())) * proto::RanksPerNode(job.spec());
}

// "5m" (that long before now) or "2026-11-30T18:00:00Z".
absl::StatusOr<int64_t> SinceWallNs(const std::string& text, int64_t now_wall_ns) {
  const absl::StatusOr<int64_t> ago_ms = proto::ParseDurationMs(text, 1000);
  if (ago_ms.ok()) return std::max<int64_t>(1, now_wall_ns - *ago_ms * kNsPerMs);
  google::protobuf::Timestamp moment;
  if (google::protobuf::util::TimeUtil::FromString(text, &moment))
    return std::max<int64_t>(1, google::protobuf::util::TimeUtil::TimestampToNanoseconds(moment));
  return absl::InvalidArgumentError(
      absl::StrCat("--since: '", text,
                   "' is neither a duration (90s, 5m, 2h) nor a moment (2026-11-30T18:00:00Z)"));
}

int Logs(const Invocation& invocation, LogOptions options, const std::string& since) {
  if (!since.empty()) {
    const auto moment = SinceWallNs(since, SystemClock().WallNs());
    if (!moment.ok()) return Fail(moment.status());
    options.since_wall_ns = *moment;
  }
  InterruptGuard guard;
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::GetJobRequest get;
  get.set_job(options.job);
  auto job =
      (*client)->Call(absl::StrCat("look at ", options.job), &v1::Scheduler::Stub::GetJob, get);
  if (!job.ok()) return Fail(job.status());
  const size_t ranks = RanksOf(*job);
  for (const uint32_t rank : options.ranks) {
    if (rank >= ranks) {
      return Fail(absl::NotFoundError(absl::StrCat("--rank: ", rank, " is not a rank of ",
                                                   options.job, ", which has 0 to ", ranks - 1)));
    }
  }
  options.job = ToString(JobId{job->id()});
  const bool with_rank = ranks > 1 && options.ranks.size() != 1;
  const std::string id = options.job;
  const int code =
      LogReader(client->get(), &guard, std::move(options), invocation.json, with_rank).Run();
  if (code == kExitInterrupted)
    Hint(absl::StrCat(id, " goes on; follow it again with: holdfast logs -f ", id));
  return code;
}

}  // namespace

void AddLogs(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "logs", "What the ranks of a job wrote",
                      "  holdfast logs j-42\n"
                      "  holdfast logs -f j-42 --rank 3 --tail 100\n"
                      "  holdfast logs j-42 --since 5m         or 2026-11-30T18:00:00Z\n"
                      "  holdfast logs j-42 --attempt 1        what an earlier attempt wrote\n");
  auto options = std::make_shared<LogOptions>();
  auto since = std::make_shared<std::string>();
  verb.Positional("job", &options->job, "j-42 or a name");
  verb.Flag("-f,--follow", &options->follow, "wait for more, until the job ends");
  verb.Option("--rank", &options->ranks, "only this rank; can be given several times");
  verb.Option("--node", &options->node, "only the ranks of this node");
  verb.Option("--attempt", &options->attempt, "default: the newest");
  verb.NonNegativeOption("--tail", &options->tail, "only the last lines of each rank");
  verb.Option("--since", since.get(),
              "only what was written after this long ago (90s, 5m, 2h) or this moment (RFC 3339)");
  verb.Then([=] { invocation->run = [=] { return Logs(*invocation, *options, *since); }; });
}

}  // namespace holdfast::cli
