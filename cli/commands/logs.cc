// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/time_util.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/log_writer.h"
#include "cli/output.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

constexpr int kBarrenStreamsMax = 3;

struct LogOptions {
  std::string job;
  std::vector<uint32_t> ranks;
  std::string node;
  uint64_t attempt = 0;
  int64_t tail = -1;
  std::string since;
  int64_t since_wall_ns = 0;  // of `since`
  bool follow = false;
};

// Copies one job's logs to stdout until their end, over as many streams as it takes.
class LogReader {
 public:
  LogReader(SchedulerClient* client, InterruptGuard* guard, LogOptions options, bool json,
            bool with_rank)
      : client_(client),
        guard_(guard),
        options_(std::move(options)),
        json_(json),
        lines_(with_rank) {}

  int Run() {
    const SystemClock clock;
    int64_t heard_ns = clock.MonoNs();
    while (true) {
      const absl::Status status = ReadOnce();
      if (guard_->interrupted()) {
        PrintBytes(lines_.Flush());
        Hint(absl::StrCat(options_.job, " goes on; follow it again with: holdfast logs -f ",
                          options_.job));
        return kExitInterrupted;
      }
      if (ended_) return End();
      const bool again =
          status.ok() || IsBroken(status) || status.code() == absl::StatusCode::kDeadlineExceeded;
      if (!again)
        return Fail(client_->Worded(absl::StrCat("read the logs of ", options_.job), status));
      barren_ = heard_ ? 0 : barren_ + 1;
      const bool hopeless = !options_.follow && status.ok() && barren_ >= kBarrenStreamsMax;
      if (!CanResume() || hopeless) return Fail(Broken());
      if (heard_) heard_ns = clock.MonoNs();
      const absl::Status back = client_->Connect(kRetryPauseMs);
      if (!back.ok() && !told_)
        Hint(absl::StrCat("holdfast: the scheduler at ", client_->endpoint(),
                          " is away; waiting for it"));
      told_ = !back.ok();
      if (clock.MonoNs() - heard_ns > LimitMs() * kNsPerMs) return Fail(Broken());
      guard_->Pause(kRetryPauseMs);
    }
  }

 private:
  // Who follows waits for the scheduler; who asked for what is there gets an answer soon.
  int64_t LimitMs() const { return options_.follow ? kReconnectMsMax : kCallMs; }

  absl::Status Broken() const {
    return absl::UnavailableError(
        absl::StrCat("the log stream of ", options_.job,
                     " broke before its end: what is shown is not all; try again"));
  }

  // From a start whose offset the scheduler did not tell nothing can be resumed without a gap or a
  // repetition.
  bool CanResume() const {
    const bool from_the_first_byte = options_.tail < 0 && options_.since_wall_ns == 0;
    return from_the_first_byte || positions_.empty() || offsets_known_;
  }

  absl::Status ReadOnce() {
    grpc::ClientContext context;
    proto::PrepareContext(&context, kStreamMs);
    guard_->Watch(&context);
    v1::ReadLogsRequest request;
    request.set_job(options_.job);
    request.mutable_ranks()->Assign(options_.ranks.begin(), options_.ranks.end());
    request.set_node(options_.node);
    request.set_attempt(options_.attempt);
    request.set_follow(options_.follow);
    request.set_tail_lines(positions_.empty() ? options_.tail : -1);
    request.set_since_wall_ns(options_.since_wall_ns);
    positions_.FillResume(&request);
    positions_.Opened();
    heard_ = false;
    auto reader = client_->stub()->ReadLogs(&context, request);
    const absl::Status status = ReadStream<v1::LogChunk>(
        &context, reader.get(), [this](const v1::LogChunk& chunk) { return Show(chunk); });
    guard_->Watch(nullptr);
    return reader_gone_ ? absl::AbortedError("nobody reads the logs any more") : status;
  }

  // False when the reader of stdout is gone or the log has ended.
  bool Show(v1::LogChunk chunk) {
    heard_ = true;
    told_ = false;
    if (!chunk.data().empty()) {
      offsets_known_ = chunk.has_offset();
      const uint64_t missing = positions_.Take(&chunk);
      if (missing > 0)
        Hint(absl::StrCat("holdfast: ", missing, " bytes of rank ", chunk.rank(),
                          " were dropped from its bounded log"));
      if (!chunk.data().empty()) {
        reader_gone_ = json_ ? !PrintLine(ToJson(chunk)) : !PrintBytes(lines_.Add(chunk));
      }
    }
    if (chunk.end()) {
      ended_ = true;
      end_reason_ = chunk.end_reason();
    }
    return !reader_gone_ && !ended_;
  }

  int End() {
    PrintBytes(lines_.Flush());
    if (!end_reason_.empty()) Hint(absl::StrCat("-- ", end_reason_));
    // "truncated: node n1 LOST": the scheduler could not get all that was asked for.
    if (absl::StartsWith(end_reason_, "truncated") || absl::StrContains(end_reason_, "LOST"))
      return Fail(Broken());
    return kExitDone;
  }

  SchedulerClient* const client_;
  InterruptGuard* const guard_;
  const LogOptions options_;
  const bool json_;
  LogPositions positions_;
  LogLines lines_;
  int barren_ = 0;  // streams in a row that ended without a byte and without an end
  bool offsets_known_ = false;
  bool ended_ = false;
  bool heard_ = false;
  bool told_ = false;
  bool reader_gone_ = false;
  std::string end_reason_;
};

size_t RanksOf(const v1::JobStatus& job) {
  return static_cast<size_t>(std::max(1u, job.spec().nodes())) *
         std::max(1u, job.spec().gpus_per_node());
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

int Logs(const Invocation& invocation, LogOptions options) {
  if (!options.since.empty()) {
    const auto since = SinceWallNs(options.since, SystemClock().WallNs());
    if (!since.ok()) return Fail(since.status());
    options.since_wall_ns = *since;
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
  return LogReader(client->get(), &guard, std::move(options), invocation.json, with_rank).Run();
}

}  // namespace

void AddLogs(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "logs", "What the ranks of a job wrote",
                      "  holdfast logs j-42\n"
                      "  holdfast logs -f j-42 --rank 3 --tail 100\n"
                      "  holdfast logs j-42 --since 5m         or 2026-11-30T18:00:00Z\n"
                      "  holdfast logs j-42 --attempt 1        what an earlier attempt wrote\n");
  auto options = std::make_shared<LogOptions>();
  verb.Positional("job", &options->job, "j-42 or a name");
  verb.Flag("-f,--follow", &options->follow, "wait for more, until the job ends");
  verb.Option("--rank", &options->ranks, "only this rank; can be given several times");
  verb.Option("--node", &options->node, "only the ranks of this node");
  verb.Option("--attempt", &options->attempt, "default: the newest");
  verb.NonNegativeOption("--tail", &options->tail, "only the last lines of each rank");
  verb.Option("--since", &options->since,
              "only what was written after this long ago (90s, 5m, 2h) or this moment (RFC 3339)");
  verb.Then([=] { invocation->run = [=] { return Logs(*invocation, *options); }; });
}

}  // namespace holdfast::cli
