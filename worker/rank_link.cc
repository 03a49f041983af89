// SPDX-License-Identifier: Apache-2.0
#include "worker/rank_link.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/session.h"

namespace holdfast::worker {
namespace {

constexpr uint32_t kArenaBuffers = 2;  // base/rank/arena.h says why two are enough

absl::Status ToStatus(const client::Error& error, const char* what) {
  if (!error) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", error.message);
  if (error.code == ESTALE) return absl::FailedPreconditionError(text);
  return error.code == EBADMSG ? absl::DataLossError(text) : absl::InternalError(text);
}

}  // namespace

bool SessionLink::AttemptIsCurrent() const { return session_->AttemptIsCurrent(); }
rank::StopReason SessionLink::ShouldStop() const { return session_->ShouldStop(); }
uint64_t SessionLink::SaveRequests() const { return session_->SaveRequests(); }
void SessionLink::EnterPhase(rank::Phase phase, uint64_t step, uint32_t micro_batch) {
  session_->EnterPhase(phase, step, micro_batch);
}
void SessionLink::FinishStep(const rank::StepRecord& record) { session_->FinishStep(record); }
void SessionLink::SetLastWords(std::string_view text) { session_->SetLastWords(text); }
bool SessionLink::HasArena() const { return !session_->Detached(); }
absl::Status SessionLink::WantArena(uint64_t data_bytes, uint32_t tensors) {
  return ToStatus(session_->WantArena(data_bytes, kArenaBuffers, tensors), "ask for the arena");
}
bool SessionLink::SnapshotReady() const { return session_->SnapshotReady(); }
absl::Status SessionLink::TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                                       uint64_t samples, bool persist, uint64_t* stall_ns) {
  return ToStatus(session_->TakeSnapshot(tensors, step, samples, persist, stall_ns),
                  "take a snapshot");
}
void SessionLink::CountSkippedSnapshot() { session_->CountSkippedSnapshot(); }
uint64_t SessionLink::RestoreStep() const { return session_->RestoreStep(); }
absl::Status SessionLink::Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) {
  return ToStatus(session_->Restore(tensors, samples), "restore from the memory snapshot");
}

}  // namespace holdfast::worker
