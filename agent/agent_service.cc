// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_service.h"

#include <poll.h>
#include <sys/inotify.h>

#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/kept_logs.h"
#include "agent/log_files.h"
#include "base/limits.h"
#include "base/unique_fd.h"
#include "proto/channel.h"
#include "proto/run_key.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kProbeDeadlineMs = 500;
constexpr int kLogLookMs =
    200;  // a followed log is looked at this often even if nothing seems to change
constexpr int64_t kLoopAnswerMs = 2000;
constexpr size_t kLogChunkBytes = 256 << 10;

// Ends an RPC exactly once: by an answer, or by the caller going away.
class StoreReactor final : public grpc::ServerUnaryReactor {
 public:
  StoreReactor(EventLoop* loop, Node* node, v1::StoreRequestResponse* response)
      : loop_(loop), node_(node), response_(response), shared_(std::make_shared<Shared>()) {
    shared_->reactor = this;
  }

  void Begin(const v1::StoreRequestRequest& request) {
    const bool posted = loop_->Post([shared = shared_, node = node_, request] {
      NodeJob* job = node->FindJob(request.job());
      if (job == nullptr) {
        return Answer(shared, absl::UnavailableError(
                                  absl::StrCat("j-", request.job(), " is not on this node (yet)")));
      }
      const uint64_t wait = job->StoreRequest(
          request.client(), request.packet(),
          [shared](absl::StatusOr<std::string> packet) { Answer(shared, std::move(packet)); });
      MutexLock lock(shared->mutex);
      shared->job = request.job();
      shared->attempt = request.attempt();
      shared->wait = wait;
    });
    if (!posted) Answer(shared_, absl::UnavailableError("the agent is stopping"));
  }

  void OnCancel() override {
    loop_->Post([shared = shared_, node = node_] {
      uint64_t job_id = 0, attempt = 0, wait = 0;
      {
        MutexLock lock(shared->mutex);
        job_id = shared->job;
        attempt = shared->attempt;
        wait = shared->wait;
      }
      NodeJob* job = node->FindJob(job_id);
      if (job != nullptr && wait != 0) job->AbandonStoreWait(attempt, wait);
    });
    Answer(shared_, absl::CancelledError("the caller is gone"));
  }

  void OnDone() override { delete this; }

 private:
  // Outlives the reactor: the store may answer after the caller went away.
  struct Shared {
    Mutex mutex;
    StoreReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;  // null once answered
    uint64_t job ABSL_GUARDED_BY(mutex) = 0;
    uint64_t attempt ABSL_GUARDED_BY(mutex) = 0;
    uint64_t wait ABSL_GUARDED_BY(mutex) = 0;
  };

  static void Answer(const std::shared_ptr<Shared>& shared, absl::StatusOr<std::string> packet) {
    StoreReactor* reactor = nullptr;
    {
      MutexLock lock(shared->mutex);
      reactor = std::exchange(shared->reactor, nullptr);
    }
    if (reactor == nullptr) return;
    if (packet.ok() && packet->empty())
      packet = absl::CancelledError("a repeat of the request took its place");
    if (packet.ok()) reactor->response_->set_packet(*std::move(packet));
    reactor->Finish(packet.ok() ? grpc::Status::OK : proto::ToGrpc(packet.status()));
  }

  EventLoop* const loop_;
  Node* const node_;
  v1::StoreRequestResponse* const response_;
  const std::shared_ptr<Shared> shared_;
};

// Where a reader that has nothing yet begins: both limits hold.
uint64_t FirstOffset(const std::string& base, const v1::ReadLogRequest& request) {
  const uint64_t tail =
      request.tail_lines() >= 0 ? TailOffset(base, request.tail_lines()).value_or(0) : 0;
  const uint64_t since =
      request.since_wall_ns() > 0 ? LogOffsetAt(base, request.since_wall_ns()) : 0;
  return std::max(tail, since);
}

}  // namespace

// Ends a call of somebody without the run's key; null when it may go on.
grpc::ServerUnaryReactor* AgentService::Refuse(grpc::CallbackServerContext* context) const {
  const grpc::Status refused = proto::CheckRunKey(options_.run_key, *context);
  if (refused.ok()) return nullptr;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(refused);
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::Ping(grpc::CallbackServerContext* context,
                                             const v1::PingRequest* request,
                                             v1::PingResponse* response) {
  if (grpc::ServerUnaryReactor* refused = Refuse(context)) return refused;
  if (IsValidName(request->from_node())) {
    MutexLock lock(mutex_);
    if (heard_ns_.size() < kPeersHeardMax || heard_ns_.count(request->from_node()) != 0) {
      heard_ns_[request->from_node()] = loop_->Now();
    }
  }
  response->set_node(options_.node);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::ProbePeer(grpc::CallbackServerContext* context,
                                                  const v1::ProbePeerRequest* request,
                                                  v1::ProbePeerResponse* response) {
  if (grpc::ServerUnaryReactor* refused = Refuse(context)) return refused;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  response->set_last_heard_age_ms(-1);
  {
    MutexLock lock(mutex_);
    const auto it = heard_ns_.find(request->node());
    if (it != heard_ns_.end())
      response->set_last_heard_age_ms((loop_->Now() - it->second) / kNsPerMs);
  }
  v1::PingRequest ping;
  ping.set_from_node(options_.node);
  const std::string address = request->address(), node = request->node();
  const bool posted = loop_->Post([this, address, node, ping, reactor, response] {
    // Another node may have got the address or the port since: its answer is no sign of this one.
    peers_->Ping(address, ping, kProbeDeadlineMs,
                 [reactor, response, node](const std::optional<std::string>& answered) {
                   response->set_reachable(answered == node);
                   reactor->Finish(grpc::Status::OK);
                 });
  });
  if (!posted)
    reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the agent is stopping"));
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::StoreRequest(grpc::CallbackServerContext* context,
                                                     const v1::StoreRequestRequest* request,
                                                     v1::StoreRequestResponse* response) {
  if (grpc::ServerUnaryReactor* refused = Refuse(context)) return refused;
  auto* reactor = new StoreReactor(loop_, node_, response);
  reactor->Begin(*request);
  return reactor;
}

bool AgentService::AskLog(const v1::ReadLogRequest& request, LogState* out) {
  auto promise =
      std::make_shared<std::promise<LogState>>();  // also held by the loop, which may answer late
  std::future<LogState> answer = promise->get_future();
  const bool posted = loop_->Post([this, promise, request] {
    LogState state;
    NodeJob* job = node_->FindJob(request.job());
    if (job != nullptr) {
      const uint64_t attempt = request.attempt() != 0 ? request.attempt() : job->started_attempt();
      state.base = LogBase(job->log_dir(), request.rank(), attempt);
      state.ended = job->LogIsFinal(request.rank(), attempt, &state.why);
    } else {
      state.base =
          LogBase(KeptLogDir(options_, JobId{request.job()}), request.rank(), request.attempt());
      state.ended = true;
      state.why = "the job is over";
    }
    promise->set_value(std::move(state));
  });
  if (!posted ||
      answer.wait_for(std::chrono::milliseconds(kLoopAnswerMs)) != std::future_status::ready)
    return false;
  try {
    *out = answer.get();
  } catch (const std::future_error&) {
    return false;
  }
  return true;
}

grpc::Status AgentService::ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                                   grpc::ServerWriter<v1::AgentLogChunk>* writer) {
  if (const grpc::Status refused = proto::CheckRunKey(options_.run_key, *context); !refused.ok())
    return refused;
  if (log_streams_.fetch_add(1) >= kLogStreamsMax) {
    log_streams_.fetch_sub(1);
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("more than ", kLogStreamsMax, " log streams of this node")};
  }
  const grpc::Status status = StreamLog(context, *request, writer);
  log_streams_.fetch_sub(1);
  return status;
}

grpc::Status AgentService::StreamLog(grpc::ServerContext* context,
                                     const v1::ReadLogRequest& request,
                                     grpc::ServerWriter<v1::AgentLogChunk>* writer) {
  LogState state;
  if (!AskLog(request, &state))
    return {grpc::StatusCode::UNAVAILABLE, "the agent's loop does not answer"};
  uint64_t offset = request.offset();
  if (offset == 0) offset = FirstOffset(state.base, request);
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string directory = state.base.substr(0, state.base.rfind('/'));
  if (watch.valid())
    ::inotify_add_watch(watch.get(), directory.c_str(), IN_MODIFY | IN_CREATE | IN_MOVED_TO);
  v1::AgentLogChunk chunk;
  std::string missing;  // where it was looked for in vain
  while (!context->IsCancelled() && !stop_.load()) {
    // Asked before reading: what was written before the end is then read after it.
    if (!AskLog(request, &state))
      return {grpc::StatusCode::UNAVAILABLE, "the agent's loop does not answer"};
    absl::StatusOr<LogPiece> piece = ReadLogAt(state.base, offset, kLogChunkBytes);
    if (!piece.ok() && state.ended) {
      // The logs of a job that is forgotten move from its keeper's directory to where they are
      // kept: between the question and the reading too.
      if (missing == state.base) return proto::ToGrpc(piece.status());
      missing = state.base;
      continue;
    }
    if (piece.ok() && !piece->data.empty()) {
      offset = piece->offset + piece->data.size();
      chunk.set_offset(piece->offset);
      chunk.set_data(std::move(piece->data));
      if (!writer->Write(chunk)) return {grpc::StatusCode::CANCELLED, "the reader is gone"};
      continue;
    }
    if (state.ended || !request.follow()) {
      chunk.Clear();
      chunk.set_offset(offset);
      chunk.set_end(true);
      chunk.set_end_reason(state.ended ? state.why : "end of what is there");
      writer->Write(chunk);
      return grpc::Status::OK;
    }
    pollfd change{watch.get(), POLLIN, 0};
    ::poll(&change, watch.valid() ? 1 : 0, kLogLookMs);
    char events[4096];
    while (::read(watch.get(), events, sizeof events) > 0) {
    }
  }
  return {grpc::StatusCode::UNAVAILABLE, "the agent is stopping"};
}

}  // namespace holdfast::agent
