// SPDX-License-Identifier: Apache-2.0
// A checkpoint store directory: write a rank's snapshot, commit, list, verify, read, digest. Works
// with no daemon.
//
// Durability: PrepareRank returns OK only when pack and manifest are synced and so are their
// directories. WriteCommit makes the checkpoint exist. Errors never damage what is committed. A
// file whose write or sync failed is abandoned under its name and the save is reported failed; the
// caller may try again, under a new name. Threads: a Store may be shared by threads that work on
// different (checkpoint, rank) pairs.
#ifndef HOLDFAST_CKPT_STORE_H_
#define HOLDFAST_CKPT_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "base/ids.h"
#include "ckpt/client/snapshot.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

struct StoreOptions {
  bool use_uring = true;  // falls back to pwrite where it is refused; says so once
  bool create = true;     // make the directory and its FORMAT file when missing
};

// A sealed snapshot in an arena, mapped by the caller, with the state already moved to WRITING.
struct SnapshotSource {
  const void* arena = nullptr;
  size_t arena_bytes = 0;
  uint32_t buffer = 0;
};

struct ListedCheckpoint {
  CheckpointId id;
  bool committed = false;
  uint32_t prepared_ranks = 0;
  uint64_t bytes = 0;
  std::string problem;  // an unreadable commit record, and why
};

class Store {
 public:
  // `fs` and the directory must outlive the store. NOT_FOUND, PERMISSION_DENIED, or
  // FAILED_PRECONDITION for a foreign or newer FORMAT.
  static absl::StatusOr<std::unique_ptr<Store>> Open(FileSystem* fs, const std::string& root,
                                                     const StoreOptions& options);
  virtual ~Store() = default;

  // Digests the snapshot again while writing it; a mismatch with the digest taken at the copy is
  // DATA_LOSS ("silent corruption" with tensor and rank) and leaves nothing behind.
  // RESOURCE_EXHAUSTED names bytes needed and free.
  virtual absl::StatusOr<RankManifest> PrepareRank(const CheckpointId& id,
                                                   const SnapshotSource& source) = 0;
  // Puts the commit record into the checkpoint's directory, durably. Idempotent; several nodes may
  // do it at once.
  virtual absl::Status WriteCommit(const CheckpointId& id, std::string_view encoded_record) = 0;
  // Removes a checkpoint that is not committed (FAILED_PRECONDITION if it is). Idempotent.
  virtual absl::Status RemoveUncommitted(const CheckpointId& id) = 0;

  // Manifests that are prepared here (for a restarted agent), of every uncommitted checkpoint of
  // the job.
  virtual absl::StatusOr<std::vector<RankManifest>> ListPrepared(JobId job) = 0;
  virtual absl::StatusOr<std::vector<ListedCheckpoint>>
  List() = 0;  // by job, then step, then attempt
  virtual absl::StatusOr<CommitRecord> ReadCommit(const CheckpointId& id) = 0;
  // The newest committed checkpoint of a job at or below `max_step` whose record is valid.
  virtual absl::StatusOr<CheckpointId> Newest(JobId job, uint64_t max_step) = 0;

  // Reads a box of a tensor (any box: it is cut out of the stored ones), verifying every byte that
  // is read; DATA_LOSS names file, offset and tensor. `out` has room for the box of the stored
  // element type: CheckModel comes first.
  virtual absl::Status ReadBox(const CommitRecord& record, const std::string& tensor,
                               const Box& box, void* out) = 0;
  // Every byte of a checkpoint; the first problem, or OK. `progress` may be null.
  virtual absl::Status Verify(
      const CheckpointId& id,
      const std::function<void(uint64_t done, uint64_t total)>& progress) = 0;
  // XXH3-128 over (name, dtype, shape, bytes) of all global tensors in name order; the same for
  // every layout.
  virtual absl::StatusOr<rank::Digest128> StateDigest(const CheckpointId& id) = 0;
};

// The checkpoint holds exactly the tensors of `wanted`, of the same type and global shape (boxes
// may differ); INVALID_ARGUMENT naming the first that differs. `wanted` is what one rank asks for:
// every rank holds a box of every tensor.
absl::Status CheckModel(const CommitRecord& record, const std::vector<TensorView>& wanted);

std::string DigestHex(const rank::Digest128& digest);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORE_H_
