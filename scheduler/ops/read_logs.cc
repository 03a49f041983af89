// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/read_logs.h"

#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/channel.h"
#include "scheduler/core/job_fsm.h"

namespace holdfast::sched {
namespace {

constexpr size_t kQueuedChunksMax = 64;
constexpr int64_t kReadDeadlineMs = 60'000;       // of one call without follow
constexpr int64_t kFollowDeadlineMs = 3'600'000;  // then it is resumed by offset
constexpr int64_t kRetryMs = 300;
constexpr int64_t kNotYetMs = 50;  // a rank that is being started has no log yet
constexpr int kTriesMax = 5;       // in a row, without a byte
constexpr int64_t kLookMs = 200;

// What the state says about a job, at one moment.
struct JobView {
  uint64_t job = 0;
  uint64_t attempt = 0;  // newest that ran
  bool ended = false;
  std::string state;
  v1::Placement placement;
  std::map<std::string, std::string> addresses;
  std::map<std::string, bool> lost;
};

absl::StatusOr<JobView> Look(CoreLock* core, const std::string& name) {
  return core->With([&](Engine& engine, Now) -> absl::StatusOr<JobView> {
    const absl::StatusOr<uint64_t> id = engine.ResolveJob(name);
    if (!id.ok()) return id.status();
    const records::JobRecord& job = engine.state().jobs.at(*id);
    JobView view;
    view.job = *id;
    view.attempt = job.last_run_attempt();
    view.ended = IsEnded(job.status().state());
    view.state = StateName(job.status().state());
    view.placement = job.status().placement();
    for (const auto& node : view.placement.nodes()) {
      const auto record = engine.state().nodes.find(node.node());
      if (record == engine.state().nodes.end()) continue;
      view.addresses[node.node()] = record->second.address();
      view.lost[node.node()] = record->second.lost();
    }
    return view;
  });
}

std::string NodeOf(const JobView& view, uint32_t rank) {
  for (const auto& node : view.placement.nodes()) {
    for (const auto& r : node.ranks()) {
      if (r.rank() == rank) return node.node();
    }
  }
  return "";
}

class LogFan {
 public:
  LogFan(CoreLock* core, AgentChannels* channels, const v1::ReadLogsRequest& request,
         const JobView& view)
      : core_(core), channels_(channels), request_(request), name_(ToString(JobId{view.job})) {}

  void Start(const std::vector<uint32_t>& ranks, const JobView& view) {
    {
      MutexLock lock(mutex_);
      running_ = ranks.size();
    }
    for (const uint32_t rank : ranks)
      threads_.emplace_back([this, rank, view] { ReadRank(rank, view); });
  }

  // The next chunk, false when all ranks are through. An empty chunk: nothing came for a while.
  bool Next(v1::LogChunk* chunk) {
    chunk->Clear();
    MutexLock lock(mutex_);
    if (queue_.empty() && running_ > 0) changed_.WaitForNs(mutex_, kLookMs * kNsPerMs);
    if (queue_.empty()) return running_ > 0;
    *chunk = std::move(queue_.front());
    queue_.pop_front();
    changed_.NotifyAll();
    return true;
  }

  void Stop() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
      for (grpc::ClientContext* call : calls_) call->TryCancel();
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::string problems() {
    MutexLock lock(mutex_);
    return problems_;
  }

 private:
  struct Outcome {
    bool ended = false;    // the agent said that this log is complete
    bool unknown = false;  // the agent has no such log
    bool progress = false;
    std::string problem;
  };

  bool Push(v1::LogChunk chunk) {
    MutexLock lock(mutex_);
    while (!stop_ && queue_.size() >= kQueuedChunksMax) changed_.Wait(mutex_);
    if (stop_) return false;
    queue_.push_back(std::move(chunk));
    changed_.NotifyAll();
    return true;
  }

  bool Stopped() {
    MutexLock lock(mutex_);
    return stop_;
  }

  bool Sleep(int64_t ms) {
    MutexLock lock(mutex_);
    if (!stop_) changed_.WaitForNs(mutex_, ms * kNsPerMs);
    return !stop_;
  }

  Outcome ReadOnce(const std::string& address, uint32_t rank, uint64_t job, uint64_t attempt,
                   int64_t tail, uint64_t* offset) {
    Outcome outcome;
    grpc::ClientContext call;
    proto::PrepareContext(&call, request_.follow() ? kFollowDeadlineMs : kReadDeadlineMs,
                          /*wait_for_ready=*/false);
    {
      MutexLock lock(mutex_);
      if (stop_) return outcome;
      calls_.insert(&call);
    }
    v1::ReadLogRequest read;
    read.set_job(job);
    read.set_attempt(attempt);
    read.set_rank(rank);
    read.set_follow(request_.follow());
    read.set_tail_lines(*offset > 0 ? -1 : tail);
    read.set_since_wall_ns(request_.since_wall_ns());
    read.set_offset(*offset);
    const auto stream = channels_->Get(address)->ReadLog(&call, read);
    v1::AgentLogChunk piece;
    while (!outcome.ended && stream->Read(&piece)) {
      outcome.ended = piece.end();
      if (piece.data().empty()) continue;
      outcome.progress = true;
      v1::LogChunk chunk;
      chunk.set_rank(rank);
      chunk.set_attempt(attempt);
      chunk.set_offset(piece.offset());
      chunk.set_has_offset(true);
      *offset = piece.offset() + piece.data().size();
      chunk.set_data(std::move(*piece.mutable_data()));
      if (!Push(std::move(chunk))) call.TryCancel();
    }
    const grpc::Status status = stream->Finish();
    MutexLock lock(mutex_);
    calls_.erase(&call);
    if (outcome.ended) return outcome;
    outcome.unknown = status.error_code() == grpc::StatusCode::NOT_FOUND;
    outcome.problem =
        status.ok() ? "the agent ended the log without saying so" : status.error_message();
    return outcome;
  }

  // One attempt of one rank, through breaks of the connection. Returns what is missing, empty when
  // nothing.
  std::string ReadAttempt(uint32_t rank, const JobView& start, uint64_t attempt, int64_t tail,
                          uint64_t offset) {
    JobView view = start;
    int tries = 0;
    while (!Stopped()) {
      const std::string node = NodeOf(view, rank);
      const auto address = view.addresses.find(node);
      if (address == view.addresses.end())
        return absl::StrCat("rank ", rank, " has no node any more");
      // An agent hears of an attempt a moment after it has begun: until it is over a log that is
      // not there may still come.
      const bool over = view.ended || view.attempt > attempt;
      const Outcome outcome = ReadOnce(address->second, rank, view.job, attempt, tail, &offset);
      if (outcome.ended) return "";
      if (outcome.unknown && over)
        return absl::StrCat("rank ", rank, " on ", node, ": ", outcome.problem);
      tries = outcome.progress ? 0 : tries + 1;
      if (view.lost[node]) return absl::StrCat("node ", node, " LOST");
      if (tries >= kTriesMax && (!request_.follow() || view.ended)) {
        return absl::StrCat("rank ", rank, " on ", node, ": ", outcome.problem);
      }
      if (!Sleep(outcome.unknown ? kNotYetMs : kRetryMs)) return "";
      const absl::StatusOr<JobView> now = Look(core_, name_);
      if (!now.ok()) return std::string(now.status().message());
      view = *now;
    }
    return "";
  }

  void ReadRank(uint32_t rank, JobView view) {
    uint64_t attempt = request_.attempt() != 0 ? request_.attempt() : view.attempt;
    uint64_t offset = 0;
    for (const auto& position : request_.resume()) {
      if (position.rank() != rank || position.attempt() > attempt) continue;
      if (request_.attempt() != 0 && position.attempt() != attempt) continue;
      attempt = position.attempt();
      offset = position.offset();
    }
    int64_t tail = request_.tail_lines();
    std::string missing;
    while (!Stopped()) {
      if (attempt > 0) missing = ReadAttempt(rank, view, attempt, tail, offset);
      if (!request_.follow() || request_.attempt() != 0) break;
      offset = 0;
      tail = -1;
      const uint64_t done = attempt;
      while (attempt == done && !view.ended && Sleep(kRetryMs)) {
        const absl::StatusOr<JobView> now = Look(core_, name_);
        if (!now.ok()) break;
        view = *now;
        // One after the other: several may have begun and ended since the last look.
        if (view.attempt > done) attempt = done + 1;
      }
      if (attempt == done) break;
      missing.clear();  // an attempt that is over lost its last lines; the next one goes on
    }
    MutexLock lock(mutex_);
    if (!missing.empty()) absl::StrAppend(&problems_, problems_.empty() ? "" : "; ", missing);
    --running_;
    changed_.NotifyAll();
  }

  CoreLock* const core_;
  AgentChannels* const channels_;
  const v1::ReadLogsRequest& request_;
  const std::string name_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::LogChunk> queue_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::string problems_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

absl::StatusOr<std::vector<uint32_t>> WantedRanks(const v1::ReadLogsRequest& request,
                                                  const JobView& view) {
  std::vector<uint32_t> ranks;
  for (const auto& node : view.placement.nodes()) {
    if (!request.node().empty() && node.node() != request.node()) continue;
    for (const auto& rank : node.ranks()) {
      const bool wanted =
          request.ranks().empty() ||
          std::count(request.ranks().begin(), request.ranks().end(), rank.rank()) > 0;
      if (wanted) ranks.push_back(rank.rank());
    }
  }
  if (request.attempt() > view.attempt) {
    return absl::NotFoundError(
        absl::StrCat("attempt: ", request.attempt(), " has not run; the newest is ", view.attempt));
  }
  if (ranks.empty() && view.attempt > 0)
    return absl::NotFoundError("no rank of the job matches ranks and node");
  if (ranks.size() > kLogRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks: ", ranks.size(), " logs at once, at most ", kLogRanksMax, "; name some ranks"));
  }
  return ranks;
}

// A job that has not run yet: a follower waits for its first attempt.
absl::StatusOr<JobView> WaitForStart(CoreLock* core, grpc::ServerContext* context,
                                     const v1::ReadLogsRequest& request, JobView view) {
  while (request.follow() && view.attempt == 0 && !view.ended) {
    if (context->IsCancelled()) return absl::CancelledError("the reader is gone");
    if (core->event_bell().stopping()) return absl::UnavailableError("the scheduler is stopping");
    core->event_bell().WaitAfter(core->event_bell().last_event(), kLookMs);
    HF_ASSIGN_OR_RETURN(view, Look(core, ToString(JobId{view.job})));
  }
  return view;
}

}  // namespace

grpc::Status ReadLogs(CoreLock* core, AgentChannels* channels, grpc::ServerContext* context,
                      const v1::ReadLogsRequest& request,
                      grpc::ServerWriter<v1::LogChunk>* writer) {
  absl::StatusOr<JobView> view = Look(core, request.job());
  if (view.ok()) view = WaitForStart(core, context, request, *view);
  if (!view.ok()) return proto::ToGrpc(view.status());
  const absl::StatusOr<std::vector<uint32_t>> ranks = WantedRanks(request, *view);
  if (!ranks.ok()) return proto::ToGrpc(ranks.status());
  LogFan fan(core, channels, request, *view);
  fan.Start(*ranks, *view);
  bool gone = false;
  v1::LogChunk chunk;
  while (!gone && !core->event_bell().stopping() && fan.Next(&chunk)) {
    gone = context->IsCancelled() || (!chunk.data().empty() && !writer->Write(chunk));
  }
  fan.Stop();
  if (gone) return {grpc::StatusCode::CANCELLED, "the reader is gone"};
  if (core->event_bell().stopping())
    return {grpc::StatusCode::UNAVAILABLE, "the scheduler is stopping"};
  const absl::StatusOr<JobView> last = Look(core, ToString(JobId{view->job}));
  chunk.Clear();
  chunk.set_end(true);
  const std::string problems = fan.problems();
  if (!problems.empty()) {
    chunk.set_end_reason(absl::StrCat("truncated: ", problems));
  } else {
    chunk.set_end_reason(last.ok() && last->ended ? absl::StrCat("job ", last->state)
                                                  : "end of what is there");
  }
  writer->Write(chunk);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
