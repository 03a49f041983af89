// SPDX-License-Identifier: Apache-2.0
#include "ckpt/store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status.h"
#include "base/uring/uring_file_system.h"
#include "ckpt/box_copy.h"
#include "ckpt/digest_stream.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/validate.h"
#include "ckpt/pack_reader.h"
#include "ckpt/pack_writer.h"
#include "ckpt/snapshot_source.h"
#include "ckpt/store_layout.h"

namespace holdfast::ckpt {
namespace {

// Room left beside the pack for its manifest, the commit record and the file system's own blocks.
constexpr uint64_t kSpareBytes = 4 << 20;
// Another node may remove the empty directory of a failed save between our mkdir and our create.
constexpr int kCreateTriesMax = 5;
constexpr int kTemporaryNamesMax = 1000;

absl::Status OkIfNotFound(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

bool SameTensors(const RankManifest& a, const RankManifest& b) {
  RankManifest left = a, right = b;
  left.pack_digest = right.pack_digest = {};
  return EncodeRankManifest(left) == EncodeRankManifest(right);
}

class StoreImpl final : public Store {
 public:
  StoreImpl(FileSystem* fs, std::unique_ptr<FileSystem> bulk, std::string root)
      : fs_(fs), bulk_(std::move(bulk)), root_(std::move(root)) {}

  absl::StatusOr<RankManifest> PrepareRank(const CheckpointId& id,
                                           const SnapshotSource& source) override;
  absl::Status WriteCommit(const CheckpointId& id, std::string_view encoded_record) override;
  absl::Status RemoveUncommitted(const CheckpointId& id) override;
  absl::StatusOr<std::vector<RankManifest>> ListPrepared(JobId job) override;
  absl::StatusOr<std::vector<ListedCheckpoint>> List() override;
  absl::StatusOr<CommitRecord> ReadCommit(const CheckpointId& id) override;
  absl::StatusOr<CheckpointId> Newest(JobId job, uint64_t max_step) override;
  absl::Status ReadBox(const CommitRecord& record, const std::string& tensor, const Box& box,
                       void* out) override;
  absl::Status Verify(const CheckpointId& id,
                      const std::function<void(uint64_t, uint64_t)>& progress) override;
  absl::StatusOr<rank::Digest128> StateDigest(const CheckpointId& id) override;

 private:
  std::string JobDir(JobId job) const {
    return JoinPath(JoinPath(root_, kJobsDirName), ToString(job));
  }
  std::string Dir(const CheckpointId& id) const { return JoinPath(root_, CheckpointDirName(id)); }
  std::string CommitPath(const CheckpointId& id) const {
    return JoinPath(Dir(id), kCommitFileName);
  }
  FileSystem* BulkFs() const { return bulk_ ? bulk_.get() : fs_; }

  absl::Status MakeCheckpointDir(const CheckpointId& id);
  absl::Status CheckSpace(const RankManifest& manifest);
  absl::StatusOr<std::optional<RankManifest>> AlreadyPrepared(const RankManifest& wanted);
  absl::StatusOr<std::string> WriteTemporaryPack(uint64_t table_offset, SourceView* view);
  absl::Status Publish(const std::string& temporary, const RankManifest& manifest);
  void RemoveFailed(const CheckpointId& id, const std::vector<std::string>& names);
  absl::StatusOr<std::vector<JobId>> Jobs();
  absl::StatusOr<std::vector<CheckpointId>> CheckpointsOf(JobId job);
  absl::StatusOr<std::vector<RankManifest>> PreparedIn(const CheckpointId& id);
  absl::StatusOr<RankManifest> ReadManifest(const CheckpointId& id, uint32_t rank);
  absl::Status VerifyManifestFile(const RankManifest& manifest);
  absl::StatusOr<ListedCheckpoint> Describe(const CheckpointId& id);

  FileSystem* const fs_;
  const std::unique_ptr<FileSystem> bulk_;  // io_uring over fs_, or null
  const std::string root_;
};

// ---- Writing ----

// Each level is synced even when it exists: another process may have made it and not have synced it
// yet.
absl::Status StoreImpl::MakeCheckpointDir(const CheckpointId& id) {
  HF_RETURN_IF_ERROR(fs_->MakeDirs(Dir(id)));
  HF_RETURN_IF_ERROR(fs_->SyncDir(root_));
  HF_RETURN_IF_ERROR(fs_->SyncDir(JoinPath(root_, kJobsDirName)));
  return fs_->SyncDir(JobDir(id.job));
}

absl::Status StoreImpl::CheckSpace(const RankManifest& manifest) {
  HF_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs_->FreeBytes(root_));
  const uint64_t need = manifest.pack_bytes + kSpareBytes;
  if (free_bytes >= need) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("save ", ToString(manifest.id), " rank ", manifest.rank, ": needs ", need,
                   " bytes, ", root_, " has ", free_bytes, " free; make room or move the store"));
}

// The manifest that an earlier, finished try left (the process died before it could say so), if it
// is of the same snapshot.
absl::StatusOr<std::optional<RankManifest>> StoreImpl::AlreadyPrepared(const RankManifest& wanted) {
  const std::string path = JoinPath(Dir(wanted.id), RankManifestFileName(wanted.rank));
  HF_ASSIGN_OR_RETURN(const bool exists, fs_->Exists(path));
  if (!exists) return std::optional<RankManifest>();
  absl::StatusOr<RankManifest> manifest = ReadManifest(wanted.id, wanted.rank);
  if (manifest.ok() && SameTensors(*manifest, wanted)) {
    HF_RETURN_IF_ERROR(fs_->SyncDir(Dir(wanted.id)));
    return std::optional<RankManifest>(*std::move(manifest));
  }
  HF_RETURN_IF_ERROR(OkIfNotFound(fs_->Remove(path)));
  HF_RETURN_IF_ERROR(fs_->SyncDir(Dir(wanted.id)));
  return std::optional<RankManifest>();
}

// After a failed save: its files, and the directory if no other rank has anything there. Best
// effort.
void StoreImpl::RemoveFailed(const CheckpointId& id, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!name.empty())
      IgnoreError(fs_->Remove(JoinPath(Dir(id), name)),
                  "the save's own error is the one to report");
  }
  IgnoreError(fs_->RemoveDir(Dir(id)), "fails, rightly, when other ranks have files there");
}

// A name of its own for each try: what a dead process or a failed sync left is never written over.
// Returns the file's name.
absl::StatusOr<std::string> StoreImpl::WriteTemporaryPack(uint64_t table_offset, SourceView* view) {
  const RankManifest& manifest = view->manifest;
  for (int number = 0; number < kTemporaryNamesMax; ++number) {
    const std::string name = absl::StrCat(manifest.pack, kTemporaryInfix, number);
    const std::string path = JoinPath(Dir(manifest.id), name);
    HF_ASSIGN_OR_RETURN(const bool taken, fs_->Exists(path));
    if (taken) continue;
    const absl::Status status = WritePack(BulkFs(), path, table_offset, view);
    if (status.ok()) return name;
    if (absl::IsAlreadyExists(status)) continue;
    RemoveFailed(manifest.id, {name});
    return status;
  }
  return absl::ResourceExhaustedError(absl::StrCat(Dir(manifest.id), ": ", kTemporaryNamesMax,
                                                   " leftovers of failed saves of rank ",
                                                   manifest.rank, "; remove that checkpoint"));
}

absl::Status StoreImpl::Publish(const std::string& temporary, const RankManifest& manifest) {
  const std::string dir = Dir(manifest.id);
  if (!temporary.empty()) {
    HF_KILL_POINT("ckpt.pack.rename:before");
    HF_RETURN_IF_ERROR(fs_->Rename(JoinPath(dir, temporary), JoinPath(dir, manifest.pack)));
    HF_RETURN_IF_ERROR(fs_->SyncDir(dir));
    HF_KILL_POINT("ckpt.pack.rename:after");
  }
  HF_KILL_POINT("ckpt.manifest:before");
  HF_RETURN_IF_ERROR(fs_->WriteFileDurably(JoinPath(dir, RankManifestFileName(manifest.rank)),
                                           EncodeRankManifest(manifest)));
  HF_KILL_POINT("ckpt.manifest:after");
  return absl::OkStatus();
}

absl::StatusOr<RankManifest> StoreImpl::PrepareRank(const CheckpointId& id,
                                                    const SnapshotSource& source) {
  HF_ASSIGN_OR_RETURN(SourceView view, ReadSource(id, source));
  RankManifest& manifest = view.manifest;
  const uint64_t table_offset = LayOutPack(&manifest);
  HF_RETURN_IF_ERROR(ValidateRankManifest(manifest));
  HF_ASSIGN_OR_RETURN(const bool committed, fs_->Exists(CommitPath(id)));
  if (committed)
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", ToString(id), " is committed already"));
  HF_ASSIGN_OR_RETURN(std::optional<RankManifest> before, AlreadyPrepared(manifest));
  if (before) return *std::move(before);
  HF_RETURN_IF_ERROR(CheckSpace(manifest));

  absl::Status status;
  std::string temporary;
  for (int tries = 0; tries < kCreateTriesMax; ++tries) {
    HF_RETURN_IF_ERROR(MakeCheckpointDir(id));
    if (manifest.pack.empty()) break;
    absl::StatusOr<std::string> written = WriteTemporaryPack(table_offset, &view);
    status = written.status();
    if (written.ok()) temporary = *std::move(written);
    if (!absl::IsNotFound(status)) break;
  }
  if (status.ok()) status = Publish(temporary, manifest);
  if (status.ok()) return manifest;
  // The manifest too: after a failed sync nobody knows whether its name is durable.
  RemoveFailed(id, {RankManifestFileName(manifest.rank), temporary, manifest.pack});
  return Annotate(status, absl::StrCat("save ", ToString(id), " rank ", manifest.rank));
}

absl::Status StoreImpl::WriteCommit(const CheckpointId& id, std::string_view encoded_record) {
  HF_ASSIGN_OR_RETURN(const CommitRecord record, DecodeCommitRecord(encoded_record));
  if (record.id != id) {
    return absl::InvalidArgumentError(
        absl::StrCat("a commit record of ", ToString(record.id), " cannot commit ", ToString(id)));
  }
  if (absl::StatusOr<CommitRecord> before = ReadCommit(id); before.ok()) {
    if (EncodeCommitRecord(*before) == encoded_record) return fs_->SyncDir(Dir(id));
    return absl::FailedPreconditionError(
        absl::StrCat(CommitPath(id), ": another valid commit record is there already"));
  }
  HF_RETURN_IF_ERROR(MakeCheckpointDir(id));
  HF_KILL_POINT("ckpt.commit:before");
  HF_RETURN_IF_ERROR(fs_->WriteFileDurably(CommitPath(id), encoded_record));
  HF_KILL_POINT("ckpt.commit:after");
  return absl::OkStatus();
}

// Manifests go first: a manifest without its pack would look prepared.
absl::Status StoreImpl::RemoveUncommitted(const CheckpointId& id) {
  HF_ASSIGN_OR_RETURN(const bool committed, fs_->Exists(CommitPath(id)));
  if (committed) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", ToString(id), " has a commit record; it is not removed"));
  }
  absl::StatusOr<std::vector<std::string>> names = fs_->List(Dir(id));
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  HF_RETURN_IF_ERROR(names.status());
  for (const bool manifests : {true, false}) {
    for (const std::string& name : *names) {
      if (ParseRankManifestFileName(name).has_value() != manifests) continue;
      HF_RETURN_IF_ERROR(OkIfNotFound(fs_->Remove(JoinPath(Dir(id), name))));
    }
    HF_RETURN_IF_ERROR(OkIfNotFound(fs_->SyncDir(Dir(id))));
  }
  HF_RETURN_IF_ERROR(OkIfNotFound(fs_->RemoveDir(Dir(id))));
  return OkIfNotFound(fs_->SyncDir(JobDir(id.job)));
}

// ---- Listing ----

absl::StatusOr<std::vector<JobId>> StoreImpl::Jobs() {
  std::vector<JobId> jobs;
  absl::StatusOr<std::vector<std::string>> names = fs_->List(JoinPath(root_, kJobsDirName));
  if (absl::IsNotFound(names.status())) return jobs;
  HF_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (absl::StatusOr<JobId> job = ParseJobId(name); job.ok()) jobs.push_back(*job);
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

absl::StatusOr<std::vector<CheckpointId>> StoreImpl::CheckpointsOf(JobId job) {
  std::vector<CheckpointId> ids;
  absl::StatusOr<std::vector<std::string>> names = fs_->List(JobDir(job));
  if (absl::IsNotFound(names.status())) return ids;
  HF_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (const std::optional<CheckpointId> id = ParseCheckpointDirName(job, name))
      ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end(), [](const CheckpointId& a, const CheckpointId& b) {
    return std::pair(a.step, a.attempt) < std::pair(b.step, b.attempt);
  });
  return ids;
}

// Checks that it is the manifest of this place and that its pack is there, whole in size.
absl::StatusOr<RankManifest> StoreImpl::ReadManifest(const CheckpointId& id, uint32_t rank) {
  const std::string path = JoinPath(Dir(id), RankManifestFileName(rank));
  HF_ASSIGN_OR_RETURN(const std::string text, fs_->ReadFile(path));
  absl::StatusOr<RankManifest> manifest = DecodeRankManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  if (manifest->id != id || manifest->rank != rank) {
    return absl::DataLossError(absl::StrCat(path, ": is the manifest of ", ToString(manifest->id),
                                            " rank ", manifest->rank));
  }
  if (!manifest->pack.empty()) {
    const std::string pack = JoinPath(Dir(id), manifest->pack);
    HF_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, fs_->OpenForRead(pack));
    HF_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
    if (size != manifest->pack_bytes) {
      return absl::DataLossError(
          absl::StrCat(pack, ": has ", size, " bytes, its manifest says ", manifest->pack_bytes));
    }
  }
  return manifest;
}

// What cannot be read is not prepared; only a directory that cannot be listed is an error.
absl::StatusOr<std::vector<RankManifest>> StoreImpl::PreparedIn(const CheckpointId& id) {
  std::vector<RankManifest> prepared;
  absl::StatusOr<std::vector<std::string>> names = fs_->List(Dir(id));
  if (absl::IsNotFound(names.status())) return prepared;
  HF_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const std::optional<uint32_t> rank = ParseRankManifestFileName(name);
    if (!rank) continue;
    if (absl::StatusOr<RankManifest> manifest = ReadManifest(id, *rank); manifest.ok())
      prepared.push_back(*std::move(manifest));
  }
  return prepared;
}

absl::StatusOr<std::vector<RankManifest>> StoreImpl::ListPrepared(JobId job) {
  std::vector<RankManifest> all;
  HF_ASSIGN_OR_RETURN(const std::vector<CheckpointId> ids, CheckpointsOf(job));
  for (const CheckpointId& id : ids) {
    HF_ASSIGN_OR_RETURN(const bool committed, fs_->Exists(CommitPath(id)));
    if (committed) continue;
    HF_ASSIGN_OR_RETURN(std::vector<RankManifest> prepared, PreparedIn(id));
    std::move(prepared.begin(), prepared.end(), std::back_inserter(all));
  }
  return all;
}

absl::StatusOr<ListedCheckpoint> StoreImpl::Describe(const CheckpointId& id) {
  ListedCheckpoint listed;
  listed.id = id;
  absl::StatusOr<CommitRecord> record = ReadCommit(id);
  if (record.ok()) {
    listed.committed = true;
    listed.prepared_ranks = record->world_size;
    listed.bytes = record->total_bytes;
    return listed;
  }
  if (!absl::IsNotFound(record.status())) listed.problem = std::string(record.status().message());
  HF_ASSIGN_OR_RETURN(const std::vector<RankManifest> prepared, PreparedIn(id));
  listed.prepared_ranks = static_cast<uint32_t>(prepared.size());
  for (const RankManifest& m : prepared) listed.bytes += m.pack_bytes;
  return listed;
}

absl::StatusOr<std::vector<ListedCheckpoint>> StoreImpl::List() {
  std::vector<ListedCheckpoint> all;
  HF_ASSIGN_OR_RETURN(const std::vector<JobId> jobs, Jobs());
  for (const JobId job : jobs) {
    HF_ASSIGN_OR_RETURN(const std::vector<CheckpointId> ids, CheckpointsOf(job));
    for (const CheckpointId& id : ids) {
      HF_ASSIGN_OR_RETURN(ListedCheckpoint listed, Describe(id));
      all.push_back(std::move(listed));
    }
  }
  return all;
}

absl::StatusOr<CommitRecord> StoreImpl::ReadCommit(const CheckpointId& id) {
  absl::StatusOr<std::string> text = fs_->ReadFile(CommitPath(id));
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat("no committed checkpoint ", ToString(id), " in ", root_));
  }
  HF_RETURN_IF_ERROR(text.status());
  absl::StatusOr<CommitRecord> record = DecodeCommitRecord(*text);
  if (!record.ok()) return Annotate(record.status(), CommitPath(id));
  if (record->id != id) {
    return absl::DataLossError(
        absl::StrCat(CommitPath(id), ": is the commit record of ", ToString(record->id)));
  }
  return record;
}

absl::StatusOr<CheckpointId> StoreImpl::Newest(JobId job, uint64_t max_step) {
  HF_ASSIGN_OR_RETURN(const std::vector<CheckpointId> ids, CheckpointsOf(job));
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    if (id->step <= max_step && ReadCommit(*id).ok()) return *id;
  }
  return absl::NotFoundError(absl::StrCat("no valid committed checkpoint of ", ToString(job),
                                          " at or below step ", max_step, " in ", root_));
}

// ---- Reading ----

absl::Status StoreImpl::ReadBox(const CommitRecord& record, const std::string& tensor,
                                const Box& box, void* out) {
  uint64_t wanted = 0, got = 0;
  bool known = false;
  for (const RankManifest& m : record.ranks) {
    std::unique_ptr<PackReader> pack;
    for (const TensorRecord& t : m.tensors) {
      if (t.name != tensor || t.replica != 0) continue;
      if (!BoxInside(box, t.global_shape)) {
        return absl::InvalidArgumentError(absl::StrCat("the box asked for leaves tensor '", tensor,
                                                       "' of ", ToString(record.id)));
      }
      known = true;
      const uint64_t element = rank::DTypeBytes(t.dtype);
      wanted = *Product(box.size) * element;
      if (t.bytes == 0 || wanted == 0 || !BoxesOverlap(t.box, box)) continue;
      if (pack == nullptr) {
        HF_ASSIGN_OR_RETURN(pack, PackReader::Open(fs_, JoinPath(Dir(record.id), m.pack), m));
      }
      if (t.box == box) return pack->ReadTensorInto(t, out);
      BoxCopier copier(t.box, box, element, out);
      HF_RETURN_IF_ERROR(pack->ReadTensor(t, [&](uint64_t begin, const char* data, size_t bytes) {
        got += copier.Consume(begin, data, bytes);
      }));
    }
  }
  if (!known)
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", ToString(record.id), " has no tensor '", tensor, "'"));
  if (got == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("tensor '", tensor, "' of ", ToString(record.id),
                                          ": the stored boxes hold ", got, " of ", wanted,
                                          " bytes asked for"));
}

// The record is the truth; a manifest beside it that differs is damage, one that is gone is not
// (the record holds it whole).
absl::Status StoreImpl::VerifyManifestFile(const RankManifest& manifest) {
  const std::string path = JoinPath(Dir(manifest.id), RankManifestFileName(manifest.rank));
  absl::StatusOr<std::string> text = fs_->ReadFile(path);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  HF_RETURN_IF_ERROR(text.status());
  if (absl::StatusOr<RankManifest> decoded = DecodeRankManifest(*text); !decoded.ok())
    return Annotate(decoded.status(), path);
  if (*text == EncodeRankManifest(manifest)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": differs from what the commit record says"));
}

absl::Status StoreImpl::Verify(const CheckpointId& id,
                               const std::function<void(uint64_t, uint64_t)>& progress) {
  HF_ASSIGN_OR_RETURN(const CommitRecord record, ReadCommit(id));
  uint64_t done = 0;
  for (const RankManifest& m : record.ranks) {
    HF_RETURN_IF_ERROR(VerifyManifestFile(m));
    if (m.pack.empty()) continue;
    HF_ASSIGN_OR_RETURN(const std::unique_ptr<PackReader> pack,
                        PackReader::Open(fs_, JoinPath(Dir(id), m.pack), m));
    uint64_t in_pack = 0;
    HF_RETURN_IF_ERROR(pack->VerifyAll([&](uint64_t bytes) {
      in_pack += bytes;
      if (progress) progress(done + in_pack, record.total_bytes);
    }));
    done += m.pack_bytes;
    if (progress) progress(done, record.total_bytes);
  }
  return absl::OkStatus();
}

void DigestHead(DigestStream* digest, const std::string& name, const TensorRecord& t) {
  digest->Update(name.c_str(), name.size() + 1);
  const char* dtype = rank::DTypeName(t.dtype);
  digest->Update(dtype, std::char_traits<char>::length(dtype) + 1);
  const uint64_t dims = t.global_shape.size();
  digest->Update(&dims, sizeof dims);
  digest->Update(t.global_shape.data(), dims * sizeof(uint64_t));
}

absl::StatusOr<rank::Digest128> StoreImpl::StateDigest(const CheckpointId& id) {
  HF_ASSIGN_OR_RETURN(const CommitRecord record, ReadCommit(id));
  std::map<std::string, const TensorRecord*> tensors;
  for (const RankManifest& m : record.ranks) {
    for (const TensorRecord& t : m.tensors) tensors.emplace(t.name, &t);
  }
  DigestStream digest;
  for (const auto& [name, t] : tensors) {
    const uint64_t bytes = *Product(t->global_shape) * rank::DTypeBytes(t->dtype);
    const std::unique_ptr<char[]> whole(new (std::nothrow) char[bytes]);
    if (whole == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for tensor '", name, "' of ", bytes, " bytes"));
    }
    const Box all{std::vector<uint64_t>(t->global_shape.size(), 0), t->global_shape};
    HF_RETURN_IF_ERROR(ReadBox(record, name, all, whole.get()));
    DigestHead(&digest, name, *t);
    digest.Update(whole.get(), bytes);
  }
  return digest.Finish();
}

// ---- Opening ----

// The root's own name must be durable too, also when a process that made it died before it could
// sync the parent. A parent that may not be read was there before.
absl::Status SyncParent(FileSystem* fs, const std::string& root) {
  const absl::Status status = fs->SyncDir(DirName(root));
  return absl::IsPermissionDenied(status) ? absl::OkStatus() : status;
}

absl::Status CreateFormat(FileSystem* fs, const std::string& root) {
  HF_RETURN_IF_ERROR(fs->MakeDirs(root));
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->List(root));
  for (const std::string& name : names) {
    // Another process may be making the same store.
    const bool ours = name == kFormatFileName || name == kJobsDirName ||
                      name.find(kTemporaryInfix) != std::string::npos;
    if (ours || name == "lost+found") continue;
    return absl::FailedPreconditionError(
        absl::StrCat(root, ": holds '", name, "' and no ", kFormatFileName,
                     " file: it is no checkpoint store; give an empty directory"));
  }
  return fs->WriteFileDurably(JoinPath(root, kFormatFileName), kFormatText);
}

absl::Status CheckFormat(FileSystem* fs, const std::string& root, bool create) {
  const std::string path = JoinPath(root, kFormatFileName);
  HF_ASSIGN_OR_RETURN(const bool exists, fs->Exists(path));
  if (!exists && !create)
    return absl::NotFoundError(absl::StrCat(root, ": no checkpoint store (it has no file FORMAT)"));
  if (!exists) return CreateFormat(fs, root);
  HF_ASSIGN_OR_RETURN(const std::string text, fs->ReadFile(path));
  if (text == kFormatText) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": of a foreign or newer format; this program reads '",
                   absl::string_view(kFormatText, sizeof kFormatText - 2), "'"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(FileSystem* fs, const std::string& root,
                                                   const StoreOptions& options) {
  if (root.empty())
    return absl::InvalidArgumentError("the store's directory is empty; give a path");
  HF_RETURN_IF_ERROR(CheckFormat(fs, root, options.create));
  if (options.create) HF_RETURN_IF_ERROR(SyncParent(fs, root));
  std::unique_ptr<FileSystem> bulk;
  // Another file system than the real one (a test's) must see every write itself.
  if (options.use_uring && fs == PosixFileSystem()) bulk = NewUringFileSystem(fs, UringOptions{});
  return std::unique_ptr<Store>(new StoreImpl(fs, std::move(bulk), root));
}

}  // namespace holdfast::ckpt
