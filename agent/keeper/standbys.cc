// SPDX-License-Identifier: Apache-2.0
// Standbys: one for each rank, started once the ranks have had the machine for a while, woken by
// the next attempt's kStart when it has the same `standby`. A standby holds no device and none of
// the job's memory; the end of its attempt does not end it, the end of the job does.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/keeper/keeper.h"
#include "agent/keeper/procs.h"

namespace holdfast::keeper {
namespace {

// What a process was started as must hold for what it becomes.
bool Fits(const rank::StartSpec& before, const rank::StartSpec& now) {
  return before.standby == now.standby && before.uid == now.uid && before.gid == now.gid &&
         before.groups == now.groups;
}

}  // namespace

bool Keeper::IsStandby(pid_t pid) const {
  return std::any_of(standbys_.begin(), standbys_.end(),
                     [pid](const auto& standby) { return standby->process.pid == pid; });
}

void Keeper::NoteStandby(uint32_t rank, pid_t pid) {
  rank::Message note;
  note.type = rank::kStandbyNote;
  note.attempt = newest_attempt_;
  note.args[0] = rank;
  note.args[1] = static_cast<uint64_t>(pid);
  TellAgent(note);
}

// Called with a new attempt's spec, after its ranks have taken what fits.
void Keeper::PlanStandbys(const rank::StartSpec& spec) {
  EndStandbys();  // of ranks that are somewhere else now
  if (!spec.standby.empty()) standby_ns_ = MonoNs() + spec.standby_after_ms * kNsPerMs;
  standby_spec_ = spec;
}

void Keeper::StartStandbys() {
  if (standby_ns_ == 0 || MonoNs() < standby_ns_) return;
  standby_ns_ = 0;
  // An attempt that has lost a rank by now is about to be followed by another.
  for (const rank::RankSpec& rank : standby_spec_.ranks) {
    const RankSlot* slot = FindSlot(rank.rank);
    if (slot == nullptr || !slot->alive()) return;
  }
  for (const rank::RankSpec& rank : standby_spec_.ranks) StartStandby(rank);
}

void Keeper::StartStandby(const rank::RankSpec& rank) {
  const auto there = [&](const auto& standby) { return standby->rank == rank.rank; };
  if (std::any_of(standbys_.begin(), standbys_.end(), there)) return;
  auto standby = std::make_unique<Standby>();
  standby->rank = rank.rank;
  standby->tag = Tag(standby_spec_.attempt, rank.rank);
  const int error = SpawnStandby(standby_spec_, EnvOf(standby_spec_, rank), limits_,
                                 &standby->process, &standby->ends);
  if (error != 0) return Note("rank %u: no standby: %s", rank.rank, strerror(error));
  NoteStandby(rank.rank, standby->process.pid);
  standbys_.push_back(std::move(standby));
}

// False: there is none that fits, or it cannot be told; the rank is started in the usual way.
bool Keeper::WakeStandbyOf(RankSlot* slot, const rank::StartSpec& spec,
                           const std::vector<std::string>& env) {
  const auto found = std::find_if(standbys_.begin(), standbys_.end(),
                                  [&](const auto& standby) { return standby->rank == slot->rank; });
  if (found == standbys_.end()) return false;
  const std::unique_ptr<Standby> standby = std::move(*found);
  standbys_.erase(found);
  NoteStandby(slot->rank, 0);
  const pid_t pid = standby->process.pid;
  const int error = Fits(standby_spec_, spec)
                        ? WakeStandby(standby->ends, rank::EncodeStandbyStart(env, spec.cwd))
                        : ESTALE;
  if (error != 0) {
    Note("rank %u: standby %d is not used: %s", slot->rank, pid, strerror(error));
    kill(-pid, SIGKILL);  // reaped as any orphan
    return false;
  }
  slot->pid = pid;
  slot->tag = standby->tag;
  slot->state = rank::kRankRunning;
  slot->output = std::move(standby->process.output);
  slot->report = std::move(standby->process.report);
  Note("rank %u attempt %llu: standby %d takes its place", slot->rank,
       static_cast<unsigned long long>(spec.attempt), pid);
  return true;
}

bool Keeper::ForgetStandby(pid_t pid) {
  const auto found = std::find_if(standbys_.begin(), standbys_.end(),
                                  [pid](const auto& s) { return s->process.pid == pid; });
  if (found == standbys_.end()) return false;
  Note("rank %u: its standby %d ended", (*found)->rank, pid);
  NoteStandby((*found)->rank, 0);
  standbys_.erase(found);
  return true;
}

void Keeper::EndStandbys() {
  standby_ns_ = 0;
  for (const auto& standby : std::exchange(standbys_, {})) {
    const pid_t pid = standby->process.pid;
    kill(-pid, SIGKILL);
    for (const pid_t child : TreeOf(pid)) kill(child, SIGKILL);
    NoteStandby(standby->rank, 0);
  }
}

}  // namespace holdfast::keeper
