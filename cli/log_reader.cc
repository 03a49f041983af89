// SPDX-License-Identifier: Apache-2.0
#include "cli/log_reader.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr int kBarrenStreamsMax = 3;

}  // namespace

LogReader::LogReader(SchedulerClient* client, InterruptGuard* guard, LogOptions options, bool json,
                     bool with_rank)
    : client_(client),
      guard_(guard),
      options_(std::move(options)),
      json_(json),
      lines_(with_rank) {}

int LogReader::Run() {
  const SystemClock clock;
  int64_t heard_ns = clock.MonoNs();
  while (true) {
    const absl::Status status = ReadOnce();
    if (guard_->interrupted()) {
      PrintBytes(lines_.Flush());
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
    if (back.ok()) heard_ns = clock.MonoNs();  // silent ranks are no absent scheduler
    if (clock.MonoNs() - heard_ns > LimitMs() * kNsPerMs) return Fail(Broken());
    guard_->Pause(kRetryPauseMs);
  }
}

// Who follows waits for the scheduler; who asked for what is there gets an answer soon.
int64_t LogReader::LimitMs() const { return options_.follow ? kReconnectMsMax : kCallMs; }

absl::Status LogReader::Broken() const {
  return absl::UnavailableError(
      absl::StrCat("the log stream of ", options_.job,
                   " broke before its end: what is shown is not all; try again"));
}

// From a start whose offset the scheduler did not tell nothing can be resumed without a gap or a
// repetition.
bool LogReader::CanResume() const {
  const bool from_the_first_byte = options_.tail < 0 && options_.since_wall_ns == 0;
  return from_the_first_byte || positions_.empty() || offsets_known_;
}

absl::Status LogReader::ReadOnce() {
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
bool LogReader::Show(v1::LogChunk chunk) {
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

int LogReader::End() {
  PrintBytes(lines_.Flush());
  if (!end_reason_.empty() && options_.tell_end) Hint(absl::StrCat("-- ", end_reason_));
  // "truncated: node n1 LOST": the scheduler could not get all that was asked for.
  if (absl::StartsWith(end_reason_, "truncated") || absl::StrContains(end_reason_, "LOST"))
    return Fail(Broken());
  return kExitDone;
}

}  // namespace holdfast::cli
