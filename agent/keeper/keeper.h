// SPDX-License-Identifier: Apache-2.0
// The keeper: parent and subreaper of the ranks of one job on one node. One thread, one poll loop,
// libc and base/rank only, so that it can stay while everything around it is killed, upgraded and
// restarted. docs/formats/rank.md says what it does with every message.
//
//   keeper.cc         set-up, the loop, connections
//   agent_side.cc     what the agent sends
//   rank_side.cc      what ranks send
//   children.cc       starting, exits and stops, descendants, output
//   standbys.cc       processes that get ready to become the ranks of the next attempt
#ifndef HOLDFAST_AGENT_KEEPER_KEEPER_H_
#define HOLDFAST_AGENT_KEEPER_KEEPER_H_

#include <poll.h>
#include <signal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/keeper/link.h"
#include "agent/keeper/rank_slot.h"
#include "agent/keeper/spawn.h"
#include "base/rank/start_spec.h"

namespace holdfast::keeper {

struct Options {
  std::string dir;  // absolute
  uint64_t job = 0;
  uint32_t max_ranks = 64;
  int owner_fd = -1;  // a pipe's read end; once its writer is gone the keeper ends; -1: none
};

class Keeper {
 public:
  explicit Keeper(const Options& options) : options_(options) {}
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Lock, signals, socket. False with a reason on stderr; then nothing is left behind.
  bool Start();
  // Until kQuit or SIGTERM. Returns the exit status.
  int Run();

 private:
  // keeper.cc
  bool LockDirectory();
  bool CatchSignals();
  bool Listen();
  void ProtectSelf();
  int PollTimeoutMs() const;
  void Poll();
  void ServeSlots(const std::vector<pollfd>& ready, size_t* at);
  void ServeLinks(const std::vector<pollfd>& ready, size_t* at);
  bool Paused(const Link& link);
  void ReadSignals();
  void EndAllRanks();
  void EndEverything();
  void Accept();
  void ReadLink(Link* link);
  void BuryLinks();
  void AllocateArenas();
  void CheckFence();
  bool WatchOwner();
  void CheckOwner();
  Link* FindLink(uint32_t id);
  Link* Agent();
  void TellAgent(rank::Message message, const std::string& payload = "",
                 std::initializer_list<int> fds = {});
  void Note(const char* format, ...) __attribute__((format(printf, 2, 3)));

  // agent_side.cc
  bool HandleAgent(Link* link, const rank::Message& m, const std::string& payload,
                   const rank::Descriptors& fds);
  void HandleAttach(Link* link, const rank::Message& m);
  void AgentGone();
  void SendState(Link* link, uint32_t request);
  void HandleStart(Link* link, const rank::Message& m, const rank::Descriptors& fds);
  bool ReadSpec(Link* link, const rank::Message& m, const rank::Descriptors& fds,
                rank::StartSpec* spec);
  void HandleSignal(Link* link, const rank::Message& m);
  void HandleFence(const rank::Message& m);
  void HandleReply(const rank::Message& m, const std::string& payload);
  void HandleQuit(Link* link, const rank::Message& m);

  // rank_side.cc: false closes the connection.
  bool HandleNew(Link* link, const rank::Message& m);
  bool HandleHello(Link* link, const rank::Message& m);
  bool HandleRank(Link* link, const rank::Message& m, const std::string& payload);
  bool HandleWantArena(Link* link, const rank::Message& m);
  bool HandleSealed(Link* link, const rank::Message& m);
  void HandleRestore(Link* link, const rank::Message& m);
  void Forward(Link* link, const rank::Message& m, const std::string& payload, bool is_request);
  void AnswerArena(RankSlot* slot, int error, const std::string& text);

  // children.cc
  RankSlot* FindSlot(uint32_t rank);
  RankSlot* MakeSlot(uint32_t rank);
  // The rank's slot with nothing left of the attempt before but its arena.
  RankSlot* BeginSlot(const rank::StartSpec& spec, const rank::RankSpec& rank, uint32_t request);
  void StartRank(const rank::StartSpec& spec, const rank::RankSpec& rank, uint32_t request);
  bool StartService(const rank::StartSpec& spec, int socket, uint32_t request);
  void ServiceEnded(const siginfo_t& info, uint64_t now_ns);
  std::vector<std::string> EnvOf(const rank::StartSpec& spec, const rank::RankSpec& rank) const;
  void StartFailed(RankSlot* slot, int stage, int error, const std::string& what);
  void ReadReport(RankSlot* slot);
  void ReapChildren();
  void RankEnded(RankSlot* slot, uint64_t wait_status, uint64_t now_ns);
  void RankPaused(RankSlot* slot, bool stopped, int signal, uint64_t now_ns);
  bool DrainOutput(RankSlot* slot, size_t budget);
  void KillRank(RankSlot* slot);
  RankSlot* OwnerOf(pid_t pid);
  bool MayLive(pid_t orphan);
  void Sweep();
  void SweepSoon();
  bool AnyAlive() const;

  // standbys.cc
  struct Standby {
    uint32_t rank = 0;
    Spawned process;
    StandbyEnds ends;
    std::string tag;  // HOLDFAST_KEEPER_RANK in the environment that the kernel shows
  };
  void PlanStandbys(const rank::StartSpec& spec);
  void StartStandbys();
  void StartStandby(const rank::RankSpec& rank);
  bool WakeStandbyOf(RankSlot* slot, const rank::StartSpec& spec,
                     const std::vector<std::string>& env);
  bool ForgetStandby(pid_t pid);
  void EndStandbys();
  bool IsStandby(pid_t pid) const;
  void NoteStandby(uint32_t rank, pid_t pid);

  const Options options_;
  UniqueFd lock_, listener_, signals_, exits_, owner_;
  std::string socket_path_;
  InheritedLimits limits_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<RankSlot>> slots_;
  uint32_t next_link_ = 1;
  uint32_t agent_ = 0;  // link id; 0 = none
  uint64_t newest_attempt_ = 0;
  pid_t service_pid_ = 0;  // of the newest attempt; 0: none, or ended
  std::vector<std::unique_ptr<Standby>> standbys_;
  rank::StartSpec standby_spec_;  // of the attempt that they get ready beside
  uint64_t standby_ns_ = 0;       // when to start them; 0: not
  uint64_t fence_ns_ = 0;
  uint64_t ownerless_ns_ = 0;  // when to end since the owner is gone; 0: it is there, or none is
  uint64_t sweep_interval_ns_ = 0;  // grows while something will not die
  uint64_t next_sweep_ns_ = 0;      // 0: nothing to look for
  int notes_ = 0;
  bool quit_ = false;
  std::string buffer_;  // one payload
};

inline constexpr uint64_t kNsPerMs = 1'000'000;
uint64_t MonoNs();
// Value of HOLDFAST_KEEPER_RANK.
std::string Tag(uint64_t attempt, uint32_t rank);

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_KEEPER_H_
