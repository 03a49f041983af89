// SPDX-License-Identifier: Apache-2.0
#include "agent/saver.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status.h"

namespace holdfast::agent {

absl::StatusOr<ckpt::Store*> Saver::Open(const std::string& directory) {
  if (directory.empty()) return absl::InvalidArgumentError("the job has no store directory");
  std::unique_ptr<ckpt::Store>& store = stores_[directory];
  if (store == nullptr) {
    HF_ASSIGN_OR_RETURN(store,
                        ckpt::Store::Open(PosixFileSystem(), directory, ckpt::StoreOptions{}));
  }
  return store.get();
}

bool Saver::Save(Persist what, std::function<void(std::optional<v1::PreparedSave>)> done) {
  return queue_.Push(
      [this, what = std::move(what), done = std::move(done)] { RunSave(what, done); });
}

void Saver::RunSave(const Persist& what,
                    const std::function<void(std::optional<v1::PreparedSave>)>& done) {
  const bool claimed = what.arena->Claim(what.buffer, what.id.attempt, what.id.step);
  const bool over = what.id.attempt < what.fence->load();
  if (claimed && over) what.arena->Release(what.buffer, false);
  if (!claimed || over) {
    spdlog::debug("{}: rank {}: superseded before it was written", ToString(what.id), what.rank);
    loop_->Post([done] { done(std::nullopt); });
    return;
  }
  absl::StatusOr<ckpt::RankManifest> manifest = absl::UnknownError("");
  const absl::StatusOr<ckpt::Store*> store = Open(what.store);
  if (store.ok()) {
    manifest =
        (*store)->PrepareRank(what.id, {what.arena->data(), what.arena->bytes(), what.buffer});
  } else {
    manifest = store.status();
  }
  HF_KILL_POINT("agent.save.prepared:after");
  what.arena->Release(what.buffer, manifest.ok());
  v1::PreparedSave save;
  save.set_job(what.id.job.value);
  save.set_attempt(what.id.attempt);
  save.set_step(what.id.step);
  save.set_rank(what.rank);
  if (manifest.ok()) {
    save.set_manifest(ckpt::EncodeRankManifest(*manifest));
  } else {
    save.set_error(std::string(manifest.status().message()));
    save.set_error_class(absl::IsDataLoss(manifest.status()) ? v1::SILENT_CORRUPTION : v1::STORAGE);
    spdlog::error("{}: rank {}: not saved: {}", ToString(what.id), what.rank,
                  manifest.status().ToString());
  }
  loop_->Post([done, save = std::move(save)]() mutable { done(std::move(save)); });
}

bool Saver::Commit(const CheckpointId& id, const std::string& directory, const std::string& record,
                   bool abort, std::function<void(absl::Status)> done) {
  return queue_.Push([this, id, directory, record, abort, done = std::move(done)] {
    const absl::StatusOr<ckpt::Store*> store = Open(directory);
    absl::Status status = store.status();
    if (store.ok())
      status = abort ? (*store)->RemoveUncommitted(id) : (*store)->WriteCommit(id, record);
    // Several nodes share the order; another one that committed first leaves nothing to remove.
    if (abort && absl::IsNotFound(status)) status = absl::OkStatus();
    loop_->Post([done, status] { done(status); });
  });
}

bool Saver::ListPrepared(
    JobId job, const std::string& directory,
    std::function<void(absl::StatusOr<std::vector<ckpt::RankManifest>>)> done) {
  return queue_.Push([this, job, directory, done = std::move(done)] {
    const absl::StatusOr<ckpt::Store*> store = Open(directory);
    auto found = store.ok() ? (*store)->ListPrepared(job)
                            : absl::StatusOr<std::vector<ckpt::RankManifest>>(store.status());
    loop_->Post([done, found = std::move(found)]() mutable { done(std::move(found)); });
  });
}

}  // namespace holdfast::agent
