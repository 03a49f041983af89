// SPDX-License-Identifier: Apache-2.0
// Lock: `mutex_` alone; never held while calling out, except TryCancel, which only marks a call.
#include "agent/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/channel.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kRegisterDeadlineMs = 2000;
constexpr int64_t kBeatDeadlineMs = 1000;
constexpr int64_t kReportDeadlineMs = 2000;
constexpr int64_t kReportAgainNs = 50 * kNsPerMs;
constexpr int64_t kBackOffFirstNs = 50 * kNsPerMs;
constexpr int64_t kBackOffMaxNs = 1 * kNsPerSec;
constexpr int64_t kLoopAnswerMs = 5000;
constexpr int64_t kStreamDeadlineMs = 24ll * 3600 * 1000;  // then the stream is opened again

// Asks the loop's thread and waits; nullopt when it stopped or is stuck.
template <typename T>
std::optional<T> AskLoop(EventLoop* loop, std::function<T()> question) {
  auto promise = std::make_shared<std::promise<T>>();  // also held by the loop, which may answer
                                                       // after we gave up
  std::future<T> answer = promise->get_future();
  if (!loop->Post([promise, question = std::move(question)] { promise->set_value(question()); }))
    return std::nullopt;
  if (answer.wait_for(std::chrono::milliseconds(kLoopAnswerMs)) != std::future_status::ready)
    return std::nullopt;
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return std::nullopt;  // the loop stopped and dropped the question
  }
}

}  // namespace

void Session::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  stub_ = v1::AgentLink::NewStub(proto::MakeChannel(options_.scheduler, options_.run_key));
  follow_ = std::thread([this] { FollowMain(); });
  beat_thread_ = std::thread([this] { BeatMain(); });
  report_ = std::thread([this] { ReportMain(); });
}

void Session::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    for (grpc::ClientContext* call : {follow_call_, beat_call_, report_call_}) {
      if (call != nullptr) call->TryCancel();
    }
    changed_.NotifyAll();
  }
  for (std::thread* thread : {&follow_, &beat_thread_, &report_}) {
    if (thread->joinable()) thread->join();
  }
}

bool Session::Stopping() {
  MutexLock lock(mutex_);
  return stop_;
}

bool Session::BeginCall(grpc::ClientContext* context, grpc::ClientContext** slot) {
  MutexLock lock(mutex_);
  if (stop_) return false;
  *slot = context;
  return true;
}

void Session::EndCall(grpc::ClientContext** slot) {
  MutexLock lock(mutex_);
  *slot = nullptr;
}

void Session::SetConnected(bool connected, const std::string& why) {
  {
    MutexLock lock(mutex_);
    if (connected_ == connected) return;
    connected_ = connected;
  }
  if (connected) {
    spdlog::info("scheduler at {}: connected", options_.scheduler);
  } else {
    spdlog::warn("scheduler at {}: {}; ranks and saves go on", options_.scheduler, why);
  }
}

void Session::FollowMain() {
  int64_t back_off = kBackOffFirstNs;
  std::minstd_rand random(static_cast<unsigned>(options_.epoch));
  while (!Stopping()) {
    const absl::Status registered = Register();
    if (registered.ok()) {
      back_off = kBackOffFirstNs;
      last_error_.clear();
      Follow();
    } else if (registered.ToString() != last_error_) {
      last_error_ = registered.ToString();
      spdlog::warn("scheduler at {}: not registered: {}", options_.scheduler, last_error_);
    }
    MutexLock lock(mutex_);
    registered_ = false;
    // Half fixed, half random: agents that lost one scheduler do not come back as one herd.
    const int64_t wait =
        back_off / 2 + static_cast<int64_t>(random() % static_cast<uint64_t>(back_off / 2 + 1));
    if (!stop_) changed_.WaitForNs(mutex_, wait);
    back_off = std::min(back_off * 2, kBackOffMaxNs);
  }
}

absl::Status Session::Register() {
  const std::optional<v1::RegisterNodeRequest> request =
      AskLoop<v1::RegisterNodeRequest>(loop_, callbacks_.registration);
  if (!request.has_value()) return absl::UnavailableError("the agent's loop does not answer");
  grpc::ClientContext context;
  proto::PrepareContext(&context, kRegisterDeadlineMs);
  v1::RegisterNodeResponse response;
  if (!BeginCall(&context, &follow_call_)) return absl::CancelledError("stopping");
  const grpc::Status status = stub_->RegisterNode(&context, *request, &response);
  EndCall(&follow_call_);
  if (!status.ok()) return proto::FromGrpc(status);
  const std::optional<absl::Status> taken =
      AskLoop<absl::Status>(loop_, [this, response] { return callbacks_.registered(response); });
  if (!taken.has_value()) return absl::UnavailableError("the agent's loop does not answer");
  HF_RETURN_IF_ERROR(*taken);
  MutexLock lock(mutex_);
  registered_ = true;
  scheduler_epoch_ = response.scheduler_epoch();
  changed_.NotifyAll();
  return absl::OkStatus();
}

void Session::Follow() {
  grpc::ClientContext context;
  proto::PrepareContext(&context, kStreamDeadlineMs);
  v1::WatchDesiredRequest request;
  request.set_node(options_.node);
  request.set_boot_id(options_.boot_id);
  request.set_agent_epoch(options_.epoch);
  if (!BeginCall(&context, &follow_call_)) return;
  const std::unique_ptr<grpc::ClientReader<v1::DesiredState>> stream =
      stub_->WatchDesired(&context, request);
  v1::DesiredState state;
  while (stream->Read(&state)) {
    SetConnected(true, "");
    loop_->Post([this, state] { callbacks_.desired(state); });
  }
  const grpc::Status status = stream->Finish();
  EndCall(&follow_call_);
  SetConnected(false, absl::StrCat("the stream of orders ended: ", status.error_message()));
}

void Session::Reconnect() {
  MutexLock lock(mutex_);
  if (follow_call_ != nullptr) follow_call_->TryCancel();
}

void Session::SendBeat(v1::BeatRequest beat) {
  MutexLock lock(mutex_);
  beat_ = std::move(beat);
  changed_.NotifyAll();
}

void Session::BeatMain() {
  while (true) {
    v1::BeatRequest beat;
    uint64_t epoch = 0;
    {
      MutexLock lock(mutex_);
      while (!stop_ && !(registered_ && beat_.has_value())) changed_.Wait(mutex_);
      if (stop_) return;
      beat = *std::exchange(beat_, std::nullopt);
      epoch = scheduler_epoch_;
    }
    grpc::ClientContext context;
    proto::PrepareContext(&context, kBeatDeadlineMs);
    v1::BeatResponse response;
    const int64_t sent_ns = loop_->Now();
    if (!BeginCall(&context, &beat_call_)) return;
    const grpc::Status status = stub_->Beat(&context, beat, &response);
    EndCall(&beat_call_);
    if (status.ok())
      loop_->Post([this, sent_ns, response] { callbacks_.beat_answered(sent_ns, response); });
    // A scheduler that does not know us, or another one than we registered with: begin anew.
    const bool unknown = status.error_code() == grpc::StatusCode::NOT_FOUND ||
                         status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
    if (unknown ||
        (status.ok() && response.scheduler_epoch() != 0 && response.scheduler_epoch() != epoch))
      Reconnect();
  }
}

void Session::SendEvent(v1::RankEvent event, int64_t at_ns, std::optional<v1::NodeReport> level) {
  MutexLock lock(mutex_);
  events_.PushEvent(std::move(event), at_ns, std::move(level));
  changed_.NotifyAll();
}

void Session::SendPrepared(v1::PreparedSave save, int64_t at_ns) {
  MutexLock lock(mutex_);
  events_.PushPrepared(std::move(save), at_ns);
  changed_.NotifyAll();
}

void Session::ReportMain() {
  uint64_t dropped_told = 0;
  while (true) {
    v1::ReportEventsRequest request;
    uint64_t dropped = 0;
    {
      MutexLock lock(mutex_);
      while (!stop_ && !(registered_ && !events_.empty())) changed_.Wait(mutex_);
      if (stop_) return;
      events_.MakeBatch(loop_->Now(), &request);
      dropped = events_.dropped();
    }
    if (dropped != dropped_told) {
      spdlog::warn("{} events were dropped while the scheduler was away; the beats tell the level",
                   dropped);
      dropped_told = dropped;
    }
    request.set_node(options_.node);
    request.set_boot_id(options_.boot_id);
    request.set_agent_epoch(options_.epoch);
    grpc::ClientContext context;
    proto::PrepareContext(&context, kReportDeadlineMs);
    v1::ReportEventsResponse response;
    if (!BeginCall(&context, &report_call_)) return;
    const grpc::Status status = stub_->ReportEvents(&context, request, &response);
    EndCall(&report_call_);
    const bool refused = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
    if (refused)
      spdlog::error("scheduler refuses events (sequence {}): {}", request.sequence(),
                    status.error_message());
    MutexLock lock(mutex_);
    if (status.ok() || refused) {
      events_.Acknowledge(request.sequence());  // what is refused once is refused for ever: the
                                                // next beat tells the level
    } else if (!stop_) {
      changed_.WaitForNs(mutex_, kReportAgainNs);
    }
  }
}

}  // namespace holdfast::agent
