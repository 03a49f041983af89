// SPDX-License-Identifier: Apache-2.0
#include "worker/restore.h"

#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

#ifdef HOLDFAST_HAVE_STORE
#include "ckpt/store.h"
#endif

namespace holdfast::worker {
namespace {

constexpr std::string_view kCheckpointPrefix = "checkpoint:";

}  // namespace

absl::StatusOr<CheckpointSource> ParseCheckpointSource(const std::string& text) {
  const auto fail = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "HOLDFAST_RESTORE: ", text, " is not checkpoint:<store>:j-<job>@<step>.<attempt>"));
  };
  if (!text.starts_with(kCheckpointPrefix)) return fail();
  const std::string rest = text.substr(kCheckpointPrefix.size());
  const size_t colon = rest.rfind(':');  // the store's path may hold colons, the id does not
  if (colon == std::string::npos || colon == 0) return fail();
  CheckpointSource source;
  source.store = rest.substr(0, colon);
  const std::string id = rest.substr(colon + 1);
  const size_t at = id.find('@'), dot = id.rfind('.');
  if (at == std::string::npos || dot == std::string::npos || dot < at) return fail();
  const absl::StatusOr<JobId> job = ParseJobId(id.substr(0, at));
  if (!job.ok() || !absl::SimpleAtoi(id.substr(at + 1, dot - at - 1), &source.id.step) ||
      !absl::SimpleAtoi(id.substr(dot + 1), &source.id.attempt) || source.id.step == 0) {
    return fail();
  }
  source.id.job = *job;
  return source;
}

#ifdef HOLDFAST_HAVE_STORE
absl::StatusOr<StartPoint> ReadCheckpoint(const CheckpointSource& source,
                                          const std::vector<ckpt::TensorView>& tensors) {
  ckpt::StoreOptions options;
  options.use_uring = false;
  options.create = false;
  HF_ASSIGN_OR_RETURN(auto store, ckpt::Store::Open(PosixFileSystem(), source.store, options));
  HF_ASSIGN_OR_RETURN(const ckpt::CommitRecord record, store->ReadCommit(source.id));
  HF_RETURN_IF_ERROR(ckpt::CheckModel(record, tensors));
  for (const ckpt::TensorView& tensor : tensors) {
    HF_RETURN_IF_ERROR(store->ReadBox(record, tensor.name,
                                      ckpt::Box{tensor.box_offset, tensor.box_size}, tensor.data));
  }
  return StartPoint{source.id.step, record.samples,
                    absl::StrCat("checkpoint ", ToString(source.id))};
}
#else
absl::StatusOr<StartPoint> ReadCheckpoint(const CheckpointSource& source,
                                          const std::vector<ckpt::TensorView>&) {
  return absl::UnimplementedError(absl::StrCat(
      "checkpoint ", ToString(source.id), " in ", source.store, ": this holdfast-worker was ",
      "built without the checkpoint engine; build with -DHOLDFAST_CONTROL_PLANE=ON"));
}
#endif

absl::StatusOr<StartPoint> Restore(RankLink* link, const std::string& restore,
                                   const std::vector<ckpt::TensorView>& tensors) {
  const uint64_t snapshot_step = link->RestoreStep();
  if (snapshot_step > 0) {
    StartPoint start{snapshot_step, 0, absl::StrCat("memory snapshot of step ", snapshot_step)};
    HF_RETURN_IF_ERROR(link->Restore(tensors, &start.samples));
    return start;
  }
  if (restore.starts_with(kCheckpointPrefix)) {
    HF_ASSIGN_OR_RETURN(const CheckpointSource source, ParseCheckpointSource(restore));
    return ReadCheckpoint(source, tensors);
  }
  if (restore.empty() || restore == "scratch") return StartPoint{};
  if (restore.starts_with("snapshot:")) {
    return absl::NotFoundError(absl::StrCat(
        "HOLDFAST_RESTORE is ", restore, ", but the keeper holds no such snapshot of this rank"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "HOLDFAST_RESTORE: ", restore, " is none of scratch, snapshot:... and checkpoint:..."));
}

}  // namespace holdfast::worker
