// SPDX-License-Identifier: Apache-2.0
// What ranks say to the keeper. A rank can write anything: a packet that makes no sense closes that
// connection, is noted, and changes nothing else.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "agent/keeper/keeper.h"

namespace holdfast::keeper {
namespace {

using rank::Message;

constexpr int kLinksPerRankMax = 8;

Message Reply(const Message& to, rank::MessageType type) {
  Message reply;
  reply.type = type;
  reply.attempt = to.attempt;
  reply.request = to.request;
  return reply;
}

bool IsStoreRequest(uint16_t type) { return type >= rank::kStoreSet && type <= rank::kStoreDelete; }

}  // namespace

bool Keeper::HandleNew(Link* link, const Message& m) {
  if (m.type == rank::kHello) return HandleHello(link, m);
  if (m.type != rank::kAttach) {
    Note("process %d: message type %u before hello; connection closed", link->peer_pid, m.type);
    return false;
  }
  if (OwnerOf(link->peer_pid) != nullptr) {
    Note("process %d belongs to a rank and may not attach", link->peer_pid);
    link->SendError(m, EPERM, "a rank may not attach");
    return false;
  }
  HandleAttach(link, m);
  return true;
}

bool Keeper::HandleHello(Link* link, const Message& m) {
  RankSlot* slot = OwnerOf(link->peer_pid);
  if (slot == nullptr) {
    Note("process %d belongs to no rank of this keeper; hello refused", link->peer_pid);
    link->SendError(m, EPERM,
                    "this process is not a rank of job " + std::to_string(options_.job) +
                        " nor a descendant of one");
    return false;
  }
  if (m.attempt != slot->attempt) {
    link->SendError(m, ESTALE,
                    "hello: attempt " + std::to_string(m.attempt) + ", this is " +
                        std::to_string(slot->attempt));
    return false;
  }
  const auto same_rank = std::count_if(links_.begin(), links_.end(), [&](const auto& other) {
    return other->kind == Link::kRank && other->rank == slot->rank && !other->dead();
  });
  if (same_rank >= kLinksPerRankMax) {
    link->SendError(m, EMFILE,
                    "at most " + std::to_string(kLinksPerRankMax) + " connections of one rank");
    return false;
  }
  link->kind = Link::kRank;
  link->rank = slot->rank;
  link->attempt = slot->attempt;

  Message welcome = Reply(m, rank::kWelcome);
  welcome.args[0] = slot->attempt;
  welcome.args[1] = slot->rank;
  welcome.args[2] = slot->world_size;
  slot->arena.Newest(&welcome.args[4], &welcome.args[3]);
  if (slot->arena.ready()) {
    link->Send(welcome, "", {slot->recorder.fd(), slot->arena.fd()});
  } else {
    link->Send(welcome, "", {slot->recorder.fd()});
  }
  Message note;
  note.type = rank::kHelloNote;
  note.attempt = slot->attempt;
  note.peer = link->id;
  note.args[0] = slot->rank;
  note.args[1] = static_cast<uint64_t>(link->peer_pid);
  note.args[2] = MonoNs();
  note.args[3] = slot->attempt;
  TellAgent(note);
  return true;
}

bool Keeper::HandleRank(Link* link, const Message& m, const std::string& payload) {
  RankSlot* slot = FindSlot(link->rank);
  if (slot == nullptr || m.attempt != link->attempt || slot->attempt != link->attempt ||
      slot->recorder.control()->attempt_current.load() > link->attempt) {
    link->SendError(m, ESTALE, "attempt " + std::to_string(m.attempt) + " is over");
    return true;
  }
  if (IsStoreRequest(m.type)) {
    if (payload.size() > rank::kPayloadBytesMax - sizeof(Message)) {
      link->SendError(m, EMSGSIZE,
                      "store: key and value of " + std::to_string(payload.size()) +
                          " bytes do not fit a packet");
    } else {
      Forward(link, m, payload, true);
    }
    return true;
  }
  switch (m.type) {
    case rank::kWantArena:
      return HandleWantArena(link, m);
    case rank::kSealed:
      return HandleSealed(link, m);
    case rank::kRestore:
      HandleRestore(link, m);
      return true;
    case rank::kMark:
      Forward(link, m, payload, false);
      return true;
    case rank::kStandbyTake:
      link->SendError(m, ENOSYS, "standby ranks are not part of version 1");
      return true;
    default:
      Note("rank %u (process %d): message type %u is not one of a rank's; connection closed",
           link->rank, link->peer_pid, m.type);
      return false;
  }
}

void Keeper::Forward(Link* link, const Message& m, const std::string& payload, bool is_request) {
  if (Agent() == nullptr) {
    // Not kept: when the agent is back the rank is told to send again, and it alone knows what is
    // still unanswered.
    link->must_resend = link->must_resend || is_request;
    return;
  }
  if (is_request) {
    link->unanswered = true;
    link->newest_request = m.request;
  }
  Message forward;
  forward.type = rank::kForward;
  forward.attempt = link->attempt;
  forward.request = m.request;
  forward.peer = link->id;
  forward.args[0] = link->rank;
  forward.args[1] = static_cast<uint64_t>(link->peer_pid);
  std::string whole(reinterpret_cast<const char*>(&m), sizeof(m));
  whole.append(payload);
  TellAgent(forward, whole);
}

bool Keeper::HandleWantArena(Link* link, const Message& m) {
  RankSlot* slot = FindSlot(link->rank);
  if (slot->allocating) {
    link->SendError(m, EBUSY, "arena: already being made");
    return true;
  }
  const ArenaRequest wanted = {m.args[0], static_cast<uint32_t>(std::min<uint64_t>(m.args[1], ~0u)),
                               static_cast<uint32_t>(std::min<uint64_t>(m.args[2], ~0u))};
  slot->arena_link = link->id;
  slot->arena_request = m;
  if (slot->arena.ready() && slot->arena.Fits(wanted, slot->world_size)) {
    AnswerArena(slot, 0, "");
    return true;
  }
  std::string text;
  const int error = slot->arena.Make(wanted, options_.job, slot->rank, slot->world_size, &text);
  if (error != 0) {
    AnswerArena(slot, error, text);
  } else {
    slot->allocating = true;  // answered when every page is there
  }
  return true;
}

void Keeper::AnswerArena(RankSlot* slot, int error, const std::string& text) {
  Link* link = FindLink(slot->arena_link);
  if (error != 0) {
    Note("rank %u: %s (errno %d)", slot->rank, text.c_str(), error);
    if (link != nullptr) link->SendError(slot->arena_request, error, text);
    return;
  }
  if (link != nullptr) {
    Message reply = Reply(slot->arena_request, rank::kArena);
    reply.args[0] = slot->arena.total_bytes();
    reply.args[1] = slot->arena.buffers();
    link->Send(reply, "", {slot->arena.fd()});
  }
  Message note;
  note.type = rank::kArenaNote;
  note.attempt = slot->attempt;
  note.args[0] = slot->rank;
  TellAgent(note, "", {slot->arena.fd()});
}

bool Keeper::HandleSealed(Link* link, const Message& m) {
  const RankSlot* slot = FindSlot(link->rank);
  if (!slot->arena.ready() || m.args[1] >= slot->arena.buffers()) {
    Note("rank %u: sealed buffer %llu of an arena with %u; connection closed", link->rank,
         static_cast<unsigned long long>(m.args[1]), slot->arena.buffers());
    return false;
  }
  Message note;
  note.type = rank::kSealedNote;
  note.attempt = link->attempt;
  note.args[0] = link->rank;
  note.args[1] = m.args[0];
  note.args[2] = m.args[1];
  note.args[3] = m.args[2];
  note.args[4] = link->attempt;
  TellAgent(note);
  return true;
}

void Keeper::HandleRestore(Link* link, const Message& m) {
  const RankSlot* slot = FindSlot(link->rank);
  const int buffer = slot->arena.ready() ? slot->arena.Find(m.args[1], m.args[0]) : -1;
  Message reply = Reply(m, buffer >= 0 ? rank::kReady : rank::kMissing);
  if (buffer >= 0) reply.args[0] = static_cast<uint64_t>(buffer);
  link->Send(reply);
}

}  // namespace holdfast::keeper
