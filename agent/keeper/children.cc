// SPDX-License-Identifier: Apache-2.0
// Processes: starting them, seeing them end or stop, and leaving none of them behind.
//
// Whose a process is. A rank leads its own session; what it starts is found as its descendant. What
// has lost its parents (double fork) is a child of the keeper, the subreaper, and is told by its
// session or by HOLDFAST_KEEPER_RANK in its environment. What hides both is killed when the last
// rank ends.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/keeper/keeper.h"
#include "agent/keeper/procs.h"

namespace holdfast::keeper {
namespace {

using rank::Message;

constexpr char kTagName[] = "HOLDFAST_KEEPER_RANK";
constexpr size_t kLastOutputBytes = 4 << 20;  // taken from the pipe of a rank that has ended
constexpr uint64_t kSweepFirstNs = 5'000'000;
constexpr uint64_t kSweepSlowestNs = 1'000'000'000;
constexpr int kAncestorsMax = 256;

uint64_t WaitStatus(const siginfo_t& info) {
  return static_cast<uint64_t>(static_cast<uint32_t>(info.si_code)) << 32 |
         static_cast<uint32_t>(info.si_status);
}

const char* StageName(int stage) {
  switch (stage) {
    case rank::kStageCwd:
      return "working directory";
    case rank::kStageUser:
      return "user";
    case rank::kStageExec:
      return "exec";
    case rank::kStageFork:
      return "fork";
    case rank::kStageLog:
      return "log file";
    case rank::kStageService:
      return "service";
    default:
      return "start";
  }
}

}  // namespace

std::string Tag(uint64_t attempt, uint32_t rank) {
  return std::to_string(attempt) + "." + std::to_string(rank);
}

RankSlot* Keeper::FindSlot(uint32_t rank) {
  for (auto& slot : slots_) {
    if (slot->rank == rank) return slot.get();
  }
  return nullptr;
}

RankSlot* Keeper::MakeSlot(uint32_t rank) {
  if (RankSlot* slot = FindSlot(rank)) return slot;
  slots_.push_back(std::make_unique<RankSlot>());
  slots_.back()->rank = rank;
  return slots_.back().get();
}

bool Keeper::AnyAlive() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->alive(); });
}

std::vector<std::string> Keeper::EnvOf(const rank::StartSpec& spec,
                                       const rank::RankSpec& rank) const {
  return MergeEnv(
      spec.env, rank.env,
      {"HOLDFAST_SOCKET=" + socket_path_, kTagName + ("=" + Tag(spec.attempt, rank.rank))});
}

RankSlot* Keeper::BeginSlot(const rank::StartSpec& spec, const rank::RankSpec& rank,
                            uint32_t request) {
  RankSlot* slot = MakeSlot(rank.rank);
  DrainOutput(slot, kLastOutputBytes);
  slot->output.Reset();
  slot->log.Close();
  slot->world_size = spec.world_size;
  slot->attempt = spec.attempt;
  slot->state = rank::kRankNone;
  slot->wait_status = slot->exit_mono_ns = 0;
  slot->program = rank.args[0];
  slot->working_directory = spec.cwd;
  slot->start_request = request;
  return slot;
}

void Keeper::StartRank(const rank::StartSpec& spec, const rank::RankSpec& rank, uint32_t request) {
  RankSlot* slot = BeginSlot(spec, rank, request);
  const std::string log = spec.log_dir + "/rank" + std::to_string(rank.rank) + "." +
                          std::to_string(spec.attempt) + ".log";
  if (const int error = slot->log.Open(log, spec.log_limit_bytes, spec.uid, spec.gid); error != 0) {
    return StartFailed(slot, rank::kStageLog, error, log);
  }
  if (const int error = slot->recorder.Make(spec.job, spec.attempt, rank.rank, spec.world_size);
      error != 0) {
    return StartFailed(slot, rank::kStageFork, error, "recorder memfd");
  }
  rank::ControlLine* control = slot->recorder.control();
  control->agent_present.store(Agent() != nullptr ? 1 : 0);
  control->fence_deadline_ns.store(fence_ns_);

  const std::vector<std::string> env = EnvOf(spec, rank);
  if (WakeStandbyOf(slot, spec, env)) return;
  Spawned started;
  if (const int error = SpawnRank(spec, rank, env, limits_, &started); error != 0) {
    return StartFailed(slot, rank::kStageFork, error, rank.args[0]);
  }
  slot->pid = started.pid;
  slot->tag = Tag(spec.attempt, rank.rank);
  slot->state = rank::kRankRunning;
  slot->output = std::move(started.output);
  slot->report = std::move(started.report);
}

// It has no tag, so MayLive() is true of it while any rank lives, and the sweep after the last one
// ends it: the same rule as for what ranks leave behind.
bool Keeper::StartService(const rank::StartSpec& spec, int socket, uint32_t request) {
  service_pid_ = SpawnService(spec, socket, limits_);
  if (service_pid_ > 0) return true;
  const int error = -std::exchange(service_pid_, 0);
  // Its ranks would wait for it in vain: none is started.
  for (const rank::RankSpec& rank : spec.ranks)
    StartFailed(BeginSlot(spec, rank, request), rank::kStageService, error, spec.service[0]);
  return false;
}

void Keeper::ServiceEnded(const siginfo_t& info, uint64_t now_ns) {
  service_pid_ = 0;
  if (!AnyAlive()) return;
  Note("the service of attempt %llu ended before its ranks (code %d, status %d)",
       static_cast<unsigned long long>(newest_attempt_), info.si_code, info.si_status);
  Message ended;
  ended.type = rank::kServiceEnded;
  ended.attempt = newest_attempt_;
  ended.args[0] = WaitStatus(info);
  ended.args[1] = now_ns;
  TellAgent(ended);
}

void Keeper::StartFailed(RankSlot* slot, int stage, int error, const std::string& what) {
  Note("rank %u attempt %llu: %s: %s: %s", slot->rank,
       static_cast<unsigned long long>(slot->attempt), StageName(stage), what.c_str(),
       strerror(error));
  Message failed;
  failed.type = rank::kStartFailed;
  failed.request = slot->start_request;
  failed.attempt = slot->attempt;
  failed.args[0] = slot->rank;
  failed.args[1] = static_cast<uint64_t>(error);
  failed.args[2] = static_cast<uint64_t>(stage);
  TellAgent(failed, what.substr(0, 4096));
  slot->start_request = 0;
}

void Keeper::ReadReport(RankSlot* slot) {
  if (!slot->report.valid()) return;
  ChildReport report;
  ssize_t got;
  do {
    got = read(slot->report.get(), &report, sizeof(report));
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return;
  slot->report.Reset();
  if (got == sizeof(report)) {
    const bool directory = report.stage == rank::kStageCwd;
    StartFailed(slot, report.stage, report.error,
                directory ? slot->working_directory : slot->program);
    return;
  }
  Message started;
  started.type = rank::kStarted;
  started.request = slot->start_request;
  started.attempt = slot->attempt;
  started.args[0] = slot->attempt;
  started.args[1] = slot->rank;
  started.args[2] = static_cast<uint64_t>(slot->pid);
  if (slot->arena.ready()) {
    TellAgent(started, "", {slot->recorder.fd(), slot->arena.fd()});
  } else {
    TellAgent(started, "", {slot->recorder.fd()});
  }
  slot->start_request = 0;
}

void Keeper::ReapChildren() {
  for (;;) {
    // Looked at first and reaped after: until then the number cannot belong to another process, so
    // its group can be signalled.
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      return;
    const uint64_t now = MonoNs();
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [&](const auto& s) { return s->pid == info.si_pid; });
    RankSlot* slot = found == slots_.end() ? nullptr : found->get();
    const bool ended =
        info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED;
    if (ended) {
      if (slot != nullptr) kill(-slot->pid, SIGKILL);
      siginfo_t reaped = {};
      waitid(P_PID, static_cast<id_t>(info.si_pid), &reaped, WEXITED | WNOHANG);
      if (slot != nullptr) RankEnded(slot, WaitStatus(info), now);
      if (info.si_pid == service_pid_) ServiceEnded(info, now);
      ForgetStandby(info.si_pid);
      SweepSoon();
      continue;
    }
    siginfo_t taken = {};
    waitid(P_PID, static_cast<id_t>(info.si_pid), &taken, WSTOPPED | WCONTINUED | WNOHANG);
    // Nobody but ranks is ever stopped on purpose: one that waits for it would wait for ever.
    if (info.si_pid == service_pid_ && taken.si_code == CLD_STOPPED) {
      Note("the service was stopped by signal %d: continued", taken.si_status);
      kill(service_pid_, SIGCONT);
    }
    if (slot == nullptr || taken.si_pid == 0) continue;
    RankPaused(slot, taken.si_code == CLD_STOPPED || taken.si_code == CLD_TRAPPED, taken.si_status,
               now);
  }
}

void Keeper::RankEnded(RankSlot* slot, uint64_t wait_status, uint64_t now_ns) {
  ReadReport(slot);
  slot->report.Reset();
  const pid_t pid = slot->pid;
  slot->pid = 0;
  slot->state = rank::kRankExited;
  slot->wait_status = wait_status;
  slot->exit_mono_ns = now_ns;
  DrainOutput(slot, kLastOutputBytes);

  char line[160];
  const int length = snprintf(line, sizeof(line), "%llu %u %d %llu %llu\n",
                              static_cast<unsigned long long>(slot->attempt), slot->rank, pid,
                              static_cast<unsigned long long>(wait_status),
                              static_cast<unsigned long long>(now_ns));
  if (write(exits_.get(), line, static_cast<size_t>(length)) != length)
    Note("exits: %s", strerror(errno));

  Message exited;
  exited.type = rank::kExited;
  exited.attempt = slot->attempt;
  exited.args[0] = slot->rank;
  exited.args[1] = static_cast<uint64_t>(pid);
  exited.args[2] = wait_status;
  exited.args[3] = now_ns;
  exited.args[4] = slot->attempt;
  TellAgent(exited);
}

void Keeper::RankPaused(RankSlot* slot, bool stopped, int signal, uint64_t now_ns) {
  slot->state = stopped ? rank::kRankStopped : rank::kRankRunning;
  Message note;
  note.type = stopped ? rank::kStopped : rank::kContinued;
  note.attempt = slot->attempt;
  note.args[0] = slot->rank;
  note.args[1] = static_cast<uint64_t>(slot->pid);
  note.args[2] = stopped ? static_cast<uint64_t>(signal) : 0;
  note.args[3] = now_ns;
  note.args[4] = slot->attempt;
  TellAgent(note);
}

bool Keeper::DrainOutput(RankSlot* slot, size_t budget) {
  char block[65536];
  while (slot->output.valid() && budget > 0) {
    const ssize_t got = read(slot->output.get(), block, std::min(sizeof(block), budget));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      slot->output.Reset();
      slot->log.Close();
      return false;
    }
    slot->log.Append(block, static_cast<size_t>(got));
    budget -= static_cast<size_t>(got);
  }
  return slot->output.valid();
}

void Keeper::KillRank(RankSlot* slot) {
  if (!slot->alive()) return;
  kill(-slot->pid, SIGKILL);
  // Also what left its session, even if the rank itself is in a call that no signal ends.
  for (pid_t pid : TreeOf(slot->pid)) kill(pid, SIGKILL);
  SweepSoon();
}

RankSlot* Keeper::OwnerOf(pid_t pid) {
  RankSlot* by_session = nullptr;
  for (int i = 0; i < kAncestorsMax && pid > 1; ++i) {
    ProcStat stat;
    if (!ReadProcStat(pid, &stat)) return nullptr;
    for (auto& slot : slots_) {
      if (slot->alive() && slot->pid == pid) return slot.get();
      if (slot->alive() && slot->pid == stat.session) by_session = slot.get();
    }
    if (stat.parent != getpid()) {
      pid = stat.parent;
      continue;
    }
    if (by_session != nullptr) return by_session;
    const std::string tag = EnvironValue(pid, kTagName);
    const auto tagged = std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) {
      return slot->alive() && tag == slot->tag;
    });
    return tagged == slots_.end() ? nullptr : tagged->get();
  }
  return nullptr;
}

bool Keeper::MayLive(pid_t orphan) {
  return IsStandby(orphan) || OwnerOf(orphan) != nullptr ||
         (AnyAlive() && EnvironValue(orphan, kTagName).empty());
}

void Keeper::SweepSoon() {
  sweep_interval_ns_ = kSweepFirstNs;
  next_sweep_ns_ = MonoNs();
}

void Keeper::Sweep() {
  bool found = false;
  for (pid_t child : ChildrenOf(getpid())) {
    if (MayLive(child)) continue;
    for (pid_t pid : TreeOf(child)) {
      kill(pid, SIGKILL);
      found = true;
    }
  }
  // A killed process may have started another meanwhile: looked again until a pass finds nothing.
  next_sweep_ns_ = found ? MonoNs() + sweep_interval_ns_ : 0;
  sweep_interval_ns_ = std::min(sweep_interval_ns_ * 2, kSweepSlowestNs);
}

}  // namespace holdfast::keeper
