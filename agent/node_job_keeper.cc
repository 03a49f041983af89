// SPDX-License-Identifier: Apache-2.0
// What the keeper says, and what to do when it is there already or is gone.
//
// Adoption: a live keeper tells everything, so what it says wins over what the directory says. Of a
// dead one only the directory is left: the newest spec names the ranks, `exits` tells how some of
// them ended, the others died with it.
#include <spdlog/spdlog.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/node_job.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int kKeeperFailuresMax = 3;  // in a row, then the ranks count as failed to start
constexpr int64_t kKeeperBackOffNs = 100 * kNsPerMs;  // doubled each time
constexpr int64_t kKeeperBackOffMaxNs = 5 * kNsPerSec;
constexpr int64_t kBuryAgainNs = 2 * kNsPerMs;
constexpr int64_t kBuryDirtyNs = 5 * kNsPerSec;
constexpr int64_t kBurySlowNs = 200 * kNsPerMs;
constexpr uint64_t kKilledStatus = (uint64_t{CLD_KILLED} << 32) | SIGKILL;

const char* StageName(uint64_t stage) {
  switch (stage) {
    case rank::kStageCwd:
      return "working directory";
    case rank::kStageUser:
      return "user";
    case rank::kStageExec:
      return "command";
    case rank::kStageFork:
      return "fork";
    case rank::kStageLog:
      return "log file";
    case rank::kStageService:
      return "rendezvous store";
    default:
      return "start";
  }
}

// A command, user or directory that is not there is so on every node; a node that is short of
// memory, processes or disk is not the job's fault.
bool IsProgramsFault(uint64_t stage, int error) {
  const bool asked_for =
      stage == rank::kStageCwd || stage == rank::kStageUser || stage == rank::kStageExec;
  switch (error) {
    case EAGAIN:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case ETXTBSY:
      return false;
    default:
      return asked_for;
  }
}

}  // namespace

void NodeJob::Adopt() {
  known_ = true;
  started_attempt_ = NewestSpec();
  LoadSpec(started_attempt_);
  // A live keeper tells the rest, and what it says wins. Should it die before, it is known what
  // died.
  if (keeper_.Adopt()) return;
  LoadExits();
  first_attach_ = false;
  std::map<uint32_t, std::shared_ptr<Arena>> no_memory;
  for (const auto& [number, unused] : ranks_) no_memory[number] = nullptr;
  saves_.CollectPrepared(no_memory);
  KeeperGone(true, "the keeper died while no agent was here");
}

uint64_t NodeJob::NewestSpec() const {
  uint64_t newest = 0;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(dir_);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    uint64_t attempt = 0;
    if (name.rfind("spec.", 0) == 0 && absl::SimpleAtoi(name.substr(5), &attempt))
      newest = std::max(newest, attempt);
  }
  return newest;
}

void NodeJob::LoadSpec(uint64_t attempt) {
  if (attempt == 0) return;
  const std::string path = JoinPath(dir_, absl::StrCat("spec.", attempt));
  std::string reason = "not readable";
  const std::optional<std::string> text = ReadSmallFile(path, rank::kStartSpecBytesMax);
  if (!text.has_value() || !rank::DecodeStartSpec(*text, &spec_, &reason)) {
    spdlog::error("{}: {}: {}", ToString(id_), path, reason);
    return;
  }
  for (const rank::RankSpec& placed : spec_.ranks) {
    LocalRank& rank = ranks_[placed.rank];
    rank.rank = placed.rank;
    if (rank.attempt != attempt) rank.Begin(attempt);
  }
  const std::string order =
      ReadSmallFile(JoinPath(dir_, absl::StrCat("desired.", attempt))).value_or("");
  if (order.empty() || !started_.ParseFromString(order)) {
    spdlog::error("{}: desired.{} is not readable; the rendezvous store waits for the scheduler",
                  ToString(id_), attempt);
    started_.Clear();
  }
  const bool serves = started_.placement().nodes_size() > 0 &&
                      started_.placement().nodes(0).node() == context_.options->node;
  rendezvous_ = serves ? "" : started_.rendezvous_address();
  master_port_ = spec_.service.empty()
                     ? 0
                     : static_cast<uint16_t>(std::atoi(EnvValue(spec_.env, "MASTER_PORT").c_str()));
  if (const std::string store = EnvValue(spec_.env, "HOLDFAST_STORE_DIR"); !store.empty())
    saves_.SetStore(store);
}

void NodeJob::LoadExits() {
  const std::string text = ReadSmallFile(JoinPath(dir_, "exits")).value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    unsigned long long attempt = 0, pid = 0, status = 0, at_ns = 0;
    unsigned rank = 0;
    if (std::sscanf(std::string(line).c_str(), "%llu %u %llu %llu %llu", &attempt, &rank, &pid,
                    &status, &at_ns) != 5)
      continue;
    LocalRank* known = FindRank(rank, attempt);
    if (known == nullptr) continue;
    known->pid = static_cast<pid_t>(pid);
    EmitEdges(known, known->fsm.Exited(status, static_cast<int64_t>(at_ns)));
  }
}

LocalRank* NodeJob::FindRank(uint64_t rank, uint64_t attempt) {
  const auto it = ranks_.find(static_cast<uint32_t>(rank));
  return it != ranks_.end() && it->second.rank == rank && it->second.attempt == attempt
             ? &it->second
             : nullptr;
}

void NodeJob::KeeperConnected() {
  told_attempt_ = 0;
  rank::Message attach;
  attach.type = rank::kAttach;
  keeper_.Send(attach);
}

void NodeJob::KeeperPacket(const rank::Message& message, std::string_view payload,
                           std::vector<UniqueFd> fds) {
  switch (message.type) {
    case rank::kState:
      OnState(message, std::move(fds));
      break;
    case rank::kStateEnd:
      OnStateEnd();
      break;
    case rank::kStarted:
      OnStarted(message, std::move(fds));
      break;
    case rank::kStartFailed:
      OnStartFailed(message, payload);
      break;
    case rank::kExited:
      OnExited(message);
      break;
    case rank::kStopped:
    case rank::kContinued:
      OnPaused(message);
      break;
    case rank::kSealedNote:
      OnSealed(message);
      break;
    case rank::kForward:
      OnForward(message, payload);
      break;
    case rank::kError:
      OnError(message, payload);
      break;
    case rank::kFenced:
      spdlog::error("{}: attempt {}: the fence deadline passed; the keeper stopped all ranks",
                    ToString(id_), started_attempt_);
      Emit(v1::RankEvent::KIND_FENCED, nullptr, static_cast<int64_t>(message.args[0]),
           "the fence deadline passed");
      break;
    case rank::kServiceEnded:
      OnServiceEnded(message);
      break;
    case rank::kStandbyNote:
      OnStandby(message);
      break;
    case rank::kHelloNote:
      if (LocalRank* rank = FindRank(message.args[0], message.attempt)) rank->hello = true;
      break;
    case rank::kArenaNote:
      if (LocalRank* rank = FindRank(message.args[0], message.attempt);
          rank != nullptr && !fds.empty()) {
        std::vector<UniqueFd> both(2);
        both[1] = std::move(fds[0]);
        TakeMemory(rank, std::move(both));
      }
      break;
    default:
      spdlog::warn("{}: the keeper sends a message of type {}, which this agent does not know",
                   ToString(id_), message.type);
  }
}

void NodeJob::TakeMemory(LocalRank* rank, std::vector<UniqueFd> fds) {
  if (!fds.empty() && fds[0].valid()) {
    absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Map(std::move(fds[0]));
    if (recorder.ok()) {
      rank->recorder = *std::move(recorder);
      rank->recorder->control()->agent_present.store(1, std::memory_order_release);
    } else {
      spdlog::error("{}: rank {}: recorder: {}", ToString(id_), rank->rank,
                    recorder.status().ToString());
    }
  }
  if (fds.size() > 1 && fds[1].valid()) {
    absl::StatusOr<std::shared_ptr<Arena>> arena = Arena::Map(std::move(fds[1]));
    if (arena.ok()) {
      rank->arena = *std::move(arena);
    } else {
      spdlog::error("{}: rank {}: arena: {}", ToString(id_), rank->rank, arena.status().ToString());
    }
  }
}

void NodeJob::OnState(const rank::Message& message, std::vector<UniqueFd> fds) {
  const auto number = static_cast<uint32_t>(message.args[0]);
  told_attempt_ = std::max(told_attempt_, message.attempt);
  LocalRank& rank = ranks_[number];
  rank.rank = number;
  const bool begins = rank.attempt != message.attempt;
  if (begins) rank.Begin(message.attempt);
  if (rank.recorder != nullptr && fds.size() == 1) fds.clear();  // the one we have
  TakeMemory(&rank, std::move(fds));
  starting_.erase(number);
  const int64_t now = context_.loop->Now();
  if (message.args[1] != 0) rank.pid = static_cast<pid_t>(message.args[1]);
  switch (message.args[2]) {
    case rank::kRankRunning:
    case rank::kRankStopped:
      if (!rank.pidfd.valid()) rank.pidfd = OpenPidfd(rank.pid);
      // It started before this agent knew of it: not an edge, the level says it.
      rank.fsm.Started(now);
      rank.LookFrozen();
      EmitEdges(&rank, message.args[2] == rank::kRankStopped ? rank.fsm.Stopped(now)
                                                             : rank.fsm.Continued(now));
      break;
    case rank::kRankExited:
      EmitEdges(&rank, rank.fsm.Exited(message.args[3], static_cast<int64_t>(message.args[4])));
      break;
    default:
      if (message.attempt == 0) break;
      rank.start_error = "the keeper could not start it; see keeper.log";
      EmitEdges(&rank, rank.fsm.StartFailed(now));
  }
}

void NodeJob::OnStateEnd() {
  attached_ = true;
  known_ = true;
  keeper_failures_ = 0;
  keeper_error_.clear();
  starting_.clear();
  started_attempt_ = told_attempt_;
  LoadSpec(started_attempt_);
  std::erase_if(ranks_,
                [this](const auto& entry) { return entry.second.attempt != started_attempt_; });
  std::map<uint32_t, std::shared_ptr<Arena>> arenas;
  for (auto& [number, rank] : ranks_) {
    arenas[number] = rank.arena;
    if (first_attach_ && rank.arena != nullptr) rank.arena->ResetStuck();
  }
  RaiseFence(std::max(fence_attempt_, started_attempt_));
  if (std::exchange(first_attach_, false)) {
    saves_.CollectPrepared(arenas);
  } else {
    for (const auto& [number, arena] : arenas) {
      if (arena != nullptr) saves_.ScanArena(number, arena, false);
    }
  }
  if (step_log_ == nullptr && started_attempt_ != 0) OpenStepLog();
  if (store_ == nullptr && started_attempt_ == fence_attempt_ && started_attempt_ != 0)
    OpenStore(started_attempt_, true);
  spdlog::info("{}: attached to keeper {}: attempt {}, {} ranks", ToString(id_), keeper_.pid(),
               started_attempt_, ranks_.size());
  FlushSteps(!AnyAlive());
  Reconcile();
}

void NodeJob::OnStarted(const rank::Message& message, std::vector<UniqueFd> fds) {
  LocalRank* rank = FindRank(message.args[1], message.args[0]);
  if (rank == nullptr) return;
  rank->pid = static_cast<pid_t>(message.args[2]);
  rank->pidfd = OpenPidfd(rank->pid);
  TakeMemory(rank, std::move(fds));
  RaiseFence(rank->attempt);
  rank->LookFrozen();
  starting_.erase(rank->rank);
  EmitEdges(rank, rank->fsm.Started(context_.loop->Now()));
  if (starting_.empty()) Reconcile();
}

void NodeJob::OnStartFailed(const rank::Message& message, std::string_view payload) {
  LocalRank* rank = FindRank(message.args[0], message.attempt);
  if (rank == nullptr) return;
  starting_.erase(rank->rank);
  rank->start_error = absl::StrCat(StageName(message.args[2]), " '",
                                   absl::string_view(payload.data(), payload.size()),
                                   "': ", std::strerror(static_cast<int>(message.args[1])));
  rank->start_is_program = IsProgramsFault(message.args[2], static_cast<int>(message.args[1]));
  spdlog::error("{}: rank {}: {}", ToString(id_), rank->rank, rank->start_error);
  EmitEdges(rank, rank->fsm.StartFailed(context_.loop->Now()));
  if (starting_.empty()) Reconcile();
}

void NodeJob::OnExited(const rank::Message& message) {
  LocalRank* rank = FindRank(message.args[0], message.args[4]);
  if (rank == nullptr) return;
  if (rank->rank == 0) FlushSteps(true);
  starting_.erase(rank->rank);
  EmitEdges(rank, rank->fsm.Exited(message.args[2], static_cast<int64_t>(message.args[3])));
  Reconcile();
}

// Ranks that have met need it no more, so nothing is done about it; but those that fail now may
// fail because of it.
void NodeJob::OnServiceEnded(const rank::Message& message) {
  if (message.attempt != started_attempt_) return;
  const std::string what =
      absl::StrCat("the rendezvous store of attempt ", message.attempt, " on ",
                   context_.options->node, " (holdfast-tcp-store) ended before its ranks: ",
                   DescribeExit(ExitCodeFromWait(message.args[0])));
  spdlog::error("{}: {}", ToString(id_), what);
  Emit(v1::RankEvent::KIND_STORE_DIED, nullptr, static_cast<int64_t>(message.args[1]), what);
}

void NodeJob::OnStandby(const rank::Message& message) {
  const auto number = static_cast<uint32_t>(message.args[0]);
  std::erase_if(standbys_, [number](const auto& standby) { return standby.second == number; });
  if (message.args[1] != 0) standbys_[static_cast<pid_t>(message.args[1])] = number;
}

void NodeJob::OnPaused(const rank::Message& message) {
  LocalRank* rank = FindRank(message.args[0], message.args[4]);
  if (rank == nullptr) return;
  const auto at_ns = static_cast<int64_t>(message.args[3]);
  EmitEdges(rank,
            message.type == rank::kStopped ? rank->fsm.Stopped(at_ns) : rank->fsm.Continued(at_ns));
}

void NodeJob::OnSealed(const rank::Message& message) {
  LocalRank* rank = FindRank(message.args[0], message.args[4]);
  if (rank == nullptr) return;
  Emit(v1::RankEvent::KIND_SEALED, rank, context_.loop->Now());
  if ((message.args[3] & rank::kSealedPersist) == 0) return;
  saves_.Sealed(rank->rank, static_cast<uint32_t>(message.args[2]), message.args[4],
                message.args[1], rank->arena);
}

void NodeJob::OnError(const rank::Message& message, std::string_view payload) {
  const std::string text = absl::StrCat(absl::string_view(payload.data(), payload.size()),
                                        " (errno ", message.args[0], ")");
  spdlog::error("{}: the keeper refuses: {}", ToString(id_), text);
  if (message.request == kQuitRequest) quitting_ = false;
  if (message.request == kStartRequest && desired_.has_value()) {
    starting_.clear();
    FailStart(started_attempt_, text, /*program=*/false);
  }
  ReconcileAt(context_.loop->Now() + kBurySlowNs);
}

void NodeJob::KeeperGone(bool connected, const std::string& why) {
  attached_ = false;
  standbys_.clear();
  if (std::exchange(quitting_, false)) {
    if (!desired_.has_value() || desired_->phase() == v1::DESIRED_PHASE_FORGET)
      return RemoveDirectory();
    return ReconcileAt(context_.loop->Now());  // wanted again meanwhile: with a new keeper
  }
  // A keeper that was adopted and dies before it has told its state had ranks.
  const bool adopted = first_attach_ && started_attempt_ != 0;
  if (!connected && !AnyAlive() && starting_.empty() && !adopted) {
    keeper_error_ = why;
    const int64_t back_off = kKeeperBackOffNs << std::min(keeper_failures_, 10);
    keeper_retry_ns_ = context_.loop->Now() + std::min(back_off, kKeeperBackOffMaxNs);
    spdlog::error("{}: no keeper: {}", ToString(id_), why);
    if (++keeper_failures_ >= kKeeperFailuresMax && desired_.has_value() &&
        desired_->phase() == v1::DESIRED_PHASE_RUN && desired_->attempt() > started_attempt_) {
      FailStart(desired_->attempt(), why, /*program=*/false);
    }
    return ReconcileAt(keeper_retry_ns_);
  }
  spdlog::error("{}: attempt {}: {}", ToString(id_), started_attempt_, why);
  burying_ = true;
  burying_since_ns_ = context_.loop->Now();
  Emit(v1::RankEvent::KIND_KEEPER_DIED, nullptr, burying_since_ns_, why);
  BuryRanks();
}

void NodeJob::BuryRanks() {
  // PDEATHSIG takes the ranks, but not what they started: that is found by its environment.
  const std::vector<FoundProcess> found =
      FindRankProcesses(JoinPath(dir_, "sock"), *context_.state_uuid);
  std::string still;
  for (const FoundProcess& process : found) {
    spdlog::warn("{}: process {} ({}) outlived its keeper: killed", ToString(id_), process.pid,
                 process.comm);
    UniqueFd pidfd = KillFound(process);
    if (!pidfd.valid()) continue;
    dying_.push_back(std::move(pidfd));
    absl::StrAppend(&still, still.empty() ? "" : ", ", process.pid);
  }
  if (still.empty() && AnyDying()) still = absl::StrCat(dying_.size(), " that were killed");
  for (const auto& [unused, rank] : ranks_) {
    if (rank.fsm.Alive() && rank.pidfd.valid() && !PidfdExited(rank.pidfd))
      absl::StrAppend(&still, " rank ", rank.rank);
  }
  const int64_t now = context_.loop->Now();
  if (!still.empty()) {
    const bool slow = now - burying_since_ns_ > kBuryDirtyNs;
    if (slow)
      dirty_reason_ =
          absl::StrCat("processes that do not end by SIGKILL after their keeper died: ", still);
    const std::shared_ptr<bool> alive = alive_;
    context_.loop->At(now + (slow ? kBurySlowNs : kBuryAgainNs), [this, alive] {
      if (*alive) BuryRanks();
    });
    return;
  }
  burying_ = false;
  dirty_reason_.clear();
  starting_.clear();
  FlushSteps(true);
  for (auto& [unused, rank] : ranks_) {
    rank.arena.reset();  // its memory is gone with the keeper: nobody can restore from it
    EmitEdges(&rank, rank.fsm.Exited(kKilledStatus, burying_since_ns_));
  }
  Reconcile();
}

}  // namespace holdfast::agent
