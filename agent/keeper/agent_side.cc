// SPDX-License-Identifier: Apache-2.0
// What the agent says to the keeper. The newest connection that may attach is the agent; the older
// one is closed.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "agent/keeper/keeper.h"

namespace holdfast::keeper {

using rank::Message;

bool Keeper::HandleAgent(Link* link, const Message& m, const std::string& payload,
                         const rank::Descriptors& fds) {
  switch (m.type) {
    case rank::kAttach:
      HandleAttach(link, m);
      return true;
    case rank::kStart:
      HandleStart(link, m, fds);
      return true;
    case rank::kSignal:
      HandleSignal(link, m);
      return true;
    case rank::kFence:
      HandleFence(m);
      return true;
    case rank::kDropArenas:
      for (auto& slot : slots_) {
        if (!slot->alive()) slot->arena.Drop();
      }
      return true;
    case rank::kReply:
      HandleReply(m, payload);
      return true;
    case rank::kQuit:
      HandleQuit(link, m);
      return true;
    default:
      Note("agent (process %d): message type %u is not one of its; connection closed",
           link->peer_pid, m.type);
      return false;
  }
}

void Keeper::HandleAttach(Link* link, const Message& m) {
  if (link->peer_uid != geteuid() && link->peer_uid != 0) {
    Note("process %d of uid %u may not attach", link->peer_pid, link->peer_uid);
    link->SendError(m, EPERM, "only the keeper's user or root may attach");
    link->Kill();
    return;
  }
  if (Link* older = Agent(); older != nullptr && older != link) {
    older->Kill();
    AgentGone();
  }
  link->kind = Link::kAgent;
  agent_ = link->id;
  for (auto& slot : slots_) {
    if (auto* control = slot->recorder.control()) control->agent_present.store(1);
  }
  Note("agent attached (process %d)", link->peer_pid);
  SendState(link, m.request);
  Message resend;
  resend.type = rank::kResend;
  for (auto& other : links_) {
    if (other->kind != Link::kRank || !other->must_resend) continue;
    other->must_resend = false;
    resend.attempt = other->attempt;
    other->Send(resend);
  }
}

void Keeper::AgentGone() {
  agent_ = 0;
  for (auto& slot : slots_) {
    if (auto* control = slot->recorder.control()) control->agent_present.store(0);
    slot->start_request = 0;
  }
  for (auto& link : links_) {
    link->must_resend = link->must_resend || link->unanswered;
    link->unanswered = false;
  }
  Note("agent gone");
}

void Keeper::SendState(Link* link, uint32_t request) {
  for (auto& slot : slots_) {
    Message state;
    state.type = rank::kState;
    state.request = request;
    state.attempt = slot->attempt;
    state.args[0] = slot->rank;
    state.args[1] = static_cast<uint64_t>(slot->pid);
    state.args[2] = slot->state;
    state.args[3] = slot->wait_status;
    state.args[4] = slot->exit_mono_ns;
    if (slot->recorder.fd() < 0) {
      link->Send(state);
    } else if (!slot->arena.ready()) {
      link->Send(state, "", {slot->recorder.fd()});
    } else {
      link->Send(state, "", {slot->recorder.fd(), slot->arena.fd()});
    }
  }
  for (const auto& standby : standbys_) NoteStandby(standby->rank, standby->process.pid);
  Message end;
  end.type = rank::kStateEnd;
  end.request = request;
  link->Send(end);
}

bool Keeper::ReadSpec(Link* link, const Message& m, const rank::Descriptors& fds,
                      rank::StartSpec* spec) {
  struct stat info;
  if (fds.count < 1 || fds.count > 2 || fstat(fds.fds[0], &info) != 0 || !S_ISREG(info.st_mode)) {
    link->SendError(m, EINVAL,
                    "start: a descriptor of a regular spec file is needed, and one of a listening "
                    "socket if the spec has a service");
    return false;
  }
  std::string text;
  char block[65536];
  ssize_t got;
  while (text.size() <= rank::kStartSpecBytesMax &&
         (got = pread(fds.fds[0], block, sizeof(block), static_cast<off_t>(text.size()))) > 0) {
    text.append(block, static_cast<size_t>(got));
  }
  std::string reason;
  if (!rank::DecodeStartSpec(text, spec, &reason)) {
    link->SendError(m, EINVAL, reason);
    return false;
  }
  if (spec->job != options_.job || spec->attempt != m.args[0] ||
      spec->ranks.size() > options_.max_ranks) {
    link->SendError(
        m, EINVAL,
        "start spec: job=" + std::to_string(spec->job) + " attempt=" +
            std::to_string(spec->attempt) + " with " + std::to_string(spec->ranks.size()) +
            " ranks does not fit: this is the keeper of job " + std::to_string(options_.job) +
            ", the message says attempt " + std::to_string(m.args[0]) + ", at most " +
            std::to_string(options_.max_ranks) + " ranks");
    return false;
  }
  if (spec->service.empty() != (fds.count == 1)) {
    link->SendError(m, EINVAL, "start: a service and its socket come together or not at all");
    return false;
  }
  return true;
}

void Keeper::HandleStart(Link* link, const Message& m, const rank::Descriptors& fds) {
  if (m.args[0] <= newest_attempt_) {
    link->SendError(m, ESTALE,
                    "start: attempt " + std::to_string(m.args[0]) + " is not newer than " +
                        std::to_string(newest_attempt_));
    return;
  }
  ReapChildren();
  if (AnyAlive()) {
    link->SendError(m, EBUSY,
                    "start: ranks of attempt " + std::to_string(newest_attempt_) + " are alive");
    return;
  }
  rank::StartSpec spec;
  if (!ReadSpec(link, m, fds, &spec)) return;
  newest_attempt_ = spec.attempt;
  for (auto& other : links_) {
    if (other->kind == Link::kRank) other->Kill();  // of processes that are gone or about to be
  }
  for (auto& slot : slots_) {
    if (auto* control = slot->recorder.control()) control->attempt_current.store(spec.attempt);
    slot->allocating = false;
    slot->arena.FreeHalfFilled();
  }
  // Slots of ranks that no longer run here stay only while they hold an arena.
  std::erase_if(slots_, [&](const auto& slot) {
    return !slot->arena.ready() &&
           std::none_of(spec.ranks.begin(), spec.ranks.end(),
                        [&](const auto& r) { return r.rank == slot->rank; });
  });
  Sweep();
  if (geteuid() == 0 && chown(socket_path_.c_str(), spec.uid, spec.gid) != 0)
    Note("chown of the socket: %s", strerror(errno));
  const bool served = spec.service.empty() || StartService(spec, fds.fds[1], m.request);
  for (const rank::RankSpec& r : spec.ranks) {
    if (served) StartRank(spec, r, m.request);
  }
  PlanStandbys(spec);
  if (!AnyAlive()) SweepSoon();  // the service has nobody to serve, and no end of a rank will come
}

void Keeper::HandleSignal(Link* link, const Message& m) {
  const int signal = static_cast<int>(m.args[0]);
  if (m.args[0] == 0 || m.args[0] >= static_cast<uint64_t>(NSIG)) {
    link->SendError(m, EINVAL, "signal " + std::to_string(m.args[0]) + " is not a signal number");
    return;
  }
  if (m.args[2] != newest_attempt_) {
    link->SendError(m, ESTALE,
                    "signal: attempt " + std::to_string(m.args[2]) +
                        " does not run here, attempt " + std::to_string(newest_attempt_) + " does");
    return;
  }
  // An orderly end: no attempt is to follow at once. (After a failure ranks get KILL.)
  if (signal == SIGTERM) EndStandbys();
  for (auto& slot : slots_) {
    if (!slot->alive() || (m.args[1] != rank::kAllRanks && m.args[1] != slot->rank)) continue;
    if (signal == SIGKILL) {
      KillRank(slot.get());
    } else {
      kill(-slot->pid, signal);  // not reaped yet, so the number is still its own
    }
  }
}

void Keeper::HandleFence(const Message& m) {
  fence_ns_ = m.args[0];
  for (auto& slot : slots_) {
    if (auto* control = slot->recorder.control()) control->fence_deadline_ns.store(fence_ns_);
  }
}

void Keeper::HandleReply(const Message& m, const std::string& payload) {
  Message inner;
  if (payload.size() < sizeof(inner)) {
    Note("agent: a reply of %zu bytes is shorter than a packet", payload.size());
    return;
  }
  memcpy(&inner, payload.data(), sizeof(inner));
  const bool known = inner.type == rank::kStoreValue || inner.type == rank::kError;
  if (!known || inner.payload_bytes != payload.size() - sizeof(inner)) {
    Note("agent: a reply of type %u with %u bytes is not one for a rank", inner.type,
         inner.payload_bytes);
    return;
  }
  Link* link = FindLink(m.peer);
  if (link == nullptr || link->kind != Link::kRank) return;  // gone meanwhile
  if (link->newest_request == inner.request) link->unanswered = false;
  link->Send(inner, payload.substr(sizeof(inner)));
}

void Keeper::HandleQuit(Link* link, const Message& m) {
  ReapChildren();
  if (AnyAlive()) {
    link->SendError(m, EBUSY,
                    "quit: ranks of attempt " + std::to_string(newest_attempt_) +
                        " are alive; signal them first");
    return;
  }
  EndEverything();
  quit_ = true;
}

}  // namespace holdfast::keeper
