// SPDX-License-Identifier: Apache-2.0
// Store requests of ranks. A rank's request comes by its keeper (kForward); the store is here, or
// on the job's first node, which is asked by gRPC. There a client is (rank, connection):
// connections are numbered by the keeper, so a repeat after a restart of either agent is
// recognised.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/node_job.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kForwardMsDefault =
    60'000;                                  // for requests that do not say how long they may wait
constexpr int64_t kForwardMarginMs = 2'000;  // the other side ends a wait itself, this much earlier
constexpr int64_t kForwardAgainNs = 50 * kNsPerMs;

uint64_t ClientId(uint32_t rank, uint32_t connection) { return uint64_t{rank} << 32 | connection; }

bool Waits(uint16_t type) { return type == rank::kStoreGet || type == rank::kStoreWait; }

}  // namespace

struct NodeJob::Forward {
  uint32_t peer = 0;
  uint64_t attempt = 0;
  int64_t deadline_ns = 0;
  rank::Message header;
  v1::StoreRequestRequest request;
};

void NodeJob::OpenStore(uint64_t attempt, bool only_existing) {
  if (only_existing &&
      (!rendezvous_.empty() || ::access(JobStore::FileName(dir_, attempt).c_str(), F_OK) != 0))
    return;
  if (store_ != nullptr && store_->attempt() != attempt) store_->Close();
  store_.reset();
  absl::StatusOr<std::unique_ptr<JobStore>> store = JobStore::Open(context_.loop, dir_, attempt);
  if (store.ok()) {
    store_ = *std::move(store);
  } else {
    spdlog::error("{}: rendezvous store: {}", ToString(id_), store.status().ToString());
  }
}

void NodeJob::AnswerRank(uint32_t peer, const std::string& packet) {
  if (packet.empty()) return;
  rank::Message reply;
  reply.type = rank::kReply;
  reply.peer = peer;
  reply.attempt = started_attempt_;
  keeper_.Send(reply, packet);
}

void NodeJob::OnForward(const rank::Message& message, std::string_view payload) {
  rank::Message header;
  std::string_view body;
  if (!ParsePacket(payload, &header, &body)) return;
  if (header.type == rank::kMark) return Poll(false);
  const uint32_t peer = message.peer;
  const auto number = static_cast<uint32_t>(message.args[0]);
  if (header.attempt < fence_attempt_) {
    return AnswerRank(peer, MakeErrorPacket(header, ESTALE,
                                            absl::StrCat("attempt ", header.attempt, " is over")));
  }
  const uint64_t client = ClientId(number, peer);
  if (store_ != nullptr && store_->attempt() == header.attempt) {
    const std::shared_ptr<bool> alive = alive_;
    store_->Handle(client, payload, [this, alive, peer](const std::string& packet) {
      if (*alive) AnswerRank(peer, packet);
    });
    return;
  }
  if (rendezvous_.empty()) {
    return AnswerRank(peer,
                      MakeErrorPacket(header, EHOSTUNREACH,
                                      "this node does not know who serves the rendezvous store"));
  }
  auto forward = std::make_shared<Forward>();
  forward->peer = peer;
  forward->attempt = header.attempt;
  forward->header = header;
  const int64_t wait_ms =
      Waits(header.type) ? static_cast<int64_t>(std::min<uint64_t>(header.args[2], kStoreWaitMsMax))
                         : kForwardMsDefault;
  forward->deadline_ns = context_.loop->Now() + wait_ms * kNsPerMs;
  forward->request.set_job(id_.value);
  forward->request.set_attempt(header.attempt);
  forward->request.set_rank(number);
  forward->request.set_client(client);
  forward->request.set_packet(std::string(payload));
  forwards_[peer] = forward;  // a repeat takes the place of what it repeats
  SendForward(forward);
}

void NodeJob::SendForward(const std::shared_ptr<Forward>& forward) {
  const int64_t left_ms =
      std::max<int64_t>(0, forward->deadline_ns - context_.loop->Now()) / kNsPerMs;
  if (Waits(forward->header.type)) {
    rank::Message header = forward->header;
    header.args[2] = static_cast<uint64_t>(left_ms);
    std::memcpy(forward->request.mutable_packet()->data(), &header, sizeof header);
  }
  const std::shared_ptr<bool> alive = alive_;
  context_.peers->StoreRequest(
      rendezvous_, forward->request, left_ms + kForwardMarginMs,
      [this, alive, forward](const absl::StatusOr<std::string>& answer) {
        if (!*alive) return;
        const auto current = forwards_.find(forward->peer);
        if (current == forwards_.end() || current->second != forward) return;
        if (answer.ok() && !answer->empty()) {
          forwards_.erase(current);
          return AnswerRank(forward->peer, *answer);
        }
        if (forward->attempt < fence_attempt_ || context_.loop->Now() >= forward->deadline_ns) {
          const bool over = forward->attempt < fence_attempt_;
          forwards_.erase(current);
          const std::string why =
              answer.ok() ? "no answer" : std::string(answer.status().message());
          return AnswerRank(forward->peer,
                            MakeErrorPacket(forward->header, over ? ESTALE : ETIMEDOUT, why));
        }
        context_.loop->At(context_.loop->Now() + kForwardAgainNs, [this, alive, forward] {
          if (!*alive) return;
          const auto it = forwards_.find(forward->peer);
          if (it != forwards_.end() && it->second == forward) SendForward(forward);
        });
      });
}

uint64_t NodeJob::StoreRequest(uint64_t client, const std::string& packet, StoreReply reply) {
  rank::Message header;
  std::string_view body;
  if (!ParsePacket(packet, &header, &body)) {
    reply(absl::InvalidArgumentError("packet: not a packet of the rank interface"));
    return 0;
  }
  if (header.attempt < fence_attempt_) {
    reply(MakeErrorPacket(header, ESTALE, absl::StrCat("attempt ", header.attempt, " is over")));
    return 0;
  }
  if (store_ == nullptr || store_->attempt() != header.attempt) {
    reply(absl::UnavailableError(absl::StrCat(ToString(id_), ": the store of attempt ",
                                              header.attempt, " is not open on node ",
                                              context_.options->node)));
    return 0;
  }
  return store_->Handle(client, packet, [reply](std::string answer) { reply(std::move(answer)); });
}

void NodeJob::AbandonStoreWait(uint64_t attempt, uint64_t wait) {
  if (store_ != nullptr && store_->attempt() == attempt) store_->Abandon(wait);
}

}  // namespace holdfast::agent
