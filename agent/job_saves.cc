// SPDX-License-Identifier: Apache-2.0
#include "agent/job_saves.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ckpt/format/manifest.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kOrderAgainNs = 1 * kNsPerSec;

}  // namespace

JobSaves::JobSaves(JobId job, EventLoop* loop, Saver* saver,
                   std::function<void(const v1::PreparedSave&)> report)
    : job_(job),
      loop_(loop),
      saver_(saver),
      report_(std::move(report)),
      fence_(std::make_shared<std::atomic<uint64_t>>(0)),
      alive_(std::make_shared<bool>(true)) {}

JobSaves::~JobSaves() { *alive_ = false; }

void JobSaves::RaiseFence(uint64_t attempt) {
  if (attempt > fence_->load()) fence_->store(attempt);
}

void JobSaves::Sealed(uint32_t rank, uint32_t buffer, uint64_t attempt, uint64_t step,
                      std::shared_ptr<Arena> arena) {
  const Key key{attempt, step, rank};
  if (arena == nullptr || saving_.count(key) != 0 || prepared_.count(key) != 0) return;
  saving_.insert(key);
  Saver::Persist what{
      CheckpointId{job_, attempt, step}, rank, buffer, std::move(arena), store_, fence_};
  const std::shared_ptr<bool> alive = alive_;
  const bool taken =
      saver_->Save(std::move(what), [this, alive, key](std::optional<v1::PreparedSave> save) {
        if (!*alive) return;
        saving_.erase(key);
        if (save.has_value()) Keep(*std::move(save));
      });
  if (!taken) {
    saving_.erase(key);
    spdlog::error("{}: rank {}: step {} is not saved: {} saves wait already", ToString(job_), rank,
                  step, kSaverTasksMax);
  }
}

void JobSaves::Keep(v1::PreparedSave save) {
  report_(save);
  if (!save.error().empty()) return;
  if (prepared_.size() >= kPreparedPerJobMax) prepared_.erase(prepared_.begin());
  const Key key{save.attempt(), save.step(), save.rank()};
  prepared_[key] = std::move(save);
}

void JobSaves::ScanArena(uint32_t rank, const std::shared_ptr<Arena>& arena, bool fresh) {
  if (fresh) arena->ResetStuck();
  for (const SealedSnapshot& snapshot : arena->Sealed()) {
    if (snapshot.persist && !snapshot.persisted)
      Sealed(rank, snapshot.buffer, snapshot.attempt, snapshot.step, arena);
  }
}

void JobSaves::CollectPrepared(const std::map<uint32_t, std::shared_ptr<Arena>>& arenas) {
  if (store_.empty()) return;
  const std::shared_ptr<bool> alive = alive_;
  const bool taken = saver_->ListPrepared(
      job_, store_, [this, alive, arenas](absl::StatusOr<std::vector<ckpt::RankManifest>> found) {
        if (!*alive) return;
        if (!found.ok()) {
          spdlog::error("{}: prepared saves in {} cannot be listed: {}", ToString(job_), store_,
                        found.status().ToString());
          found = std::vector<ckpt::RankManifest>();
        }
        for (const ckpt::RankManifest& manifest : *found) {
          const Key key{manifest.id.attempt, manifest.id.step, manifest.rank};
          const auto arena = arenas.find(manifest.rank);
          if (arena == arenas.end() || prepared_.count(key) != 0) continue;
          if (arena->second != nullptr)
            arena->second->MarkPersisted(manifest.id.attempt, manifest.id.step);
          v1::PreparedSave save;
          save.set_job(job_.value);
          save.set_attempt(manifest.id.attempt);
          save.set_step(manifest.id.step);
          save.set_rank(manifest.rank);
          save.set_manifest(ckpt::EncodeRankManifest(manifest));
          Keep(std::move(save));
        }
        for (const auto& [rank, arena] : arenas) {
          if (arena != nullptr) ScanArena(rank, arena, false);
        }
      });
  if (!taken)
    spdlog::error("{}: prepared saves are not listed: the saver's queue is full", ToString(job_));
}

void JobSaves::ApplyOrders(const v1::DesiredJob& desired) {
  std::set<StepKey> wanted;
  for (const v1::CommitOrder& order : desired.commits()) {
    const StepKey key{order.attempt(), order.step()};
    wanted.insert(key);
    if (done_.count(key) != 0 || ordered_.count(key) != 0) continue;
    const auto failed = failed_ns_.find(key);
    if (failed != failed_ns_.end() && loop_->Now() - failed->second < kOrderAgainNs) continue;
    ordered_.insert(key);
    const std::shared_ptr<bool> alive = alive_;
    const CheckpointId id{job_, order.attempt(), order.step()};
    const bool taken = saver_->Commit(id, desired.store(), order.record(), order.abort(),
                                      [this, alive, order](const absl::Status& status) {
                                        if (*alive) Ordered(order, status);
                                      });
    if (!taken) ordered_.erase(key);  // the next look at the level tries again
  }
  std::erase_if(done_, [&wanted](const StepKey& key) { return wanted.count(key) == 0; });
  std::erase_if(failed_ns_,
                [&wanted](const auto& entry) { return wanted.count(entry.first) == 0; });
}

void JobSaves::Ordered(const v1::CommitOrder& order, const absl::Status& status) {
  const StepKey key{order.attempt(), order.step()};
  ordered_.erase(key);
  if (!status.ok()) {
    if (failed_ns_.count(key) == 0) {
      spdlog::error("{}: {} of step {} (attempt {}) failed and will be tried again: {}",
                    ToString(job_), order.abort() ? "removing the save" : "the commit record",
                    order.step(), order.attempt(), status.ToString());
    }
    failed_ns_[key] = loop_->Now();
    return;
  }
  failed_ns_.erase(key);
  done_.insert(key);
  if (!order.abort()) commits_written_ = std::max(commits_written_, order.step());
  std::erase_if(prepared_, [&key](const auto& entry) {
    return std::get<0>(entry.first) == key.first && std::get<1>(entry.first) == key.second;
  });
}

void JobSaves::AddPrepared(uint64_t attempt, uint64_t acknowledged_step, size_t* bytes_left,
                           v1::NodeReport* out) const {
  for (const auto& [key, save] : prepared_) {
    v1::PreparedSave* copy = out->add_prepared();
    *copy = save;
    const bool acknowledged = save.attempt() == attempt && save.step() <= acknowledged_step;
    if (acknowledged || save.manifest().size() > *bytes_left) {
      copy->clear_manifest();
    } else {
      *bytes_left -= save.manifest().size();
    }
  }
}

}  // namespace holdfast::agent
