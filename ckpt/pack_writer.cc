// SPDX-License-Identifier: Apache-2.0
#include "ckpt/pack_writer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ckpt/digest_stream.h"
#include "ckpt/format/pack.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kWriteBytes = 4 << 20;

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

// Puts bytes at growing, page-aligned places of the file: what lies aligned in memory is written
// from where it is, the rest is gathered in one staging block (the file copies it before WriteAt
// returns, see CreateBulk).
class PageWriter {
 public:
  explicit PageWriter(WritableFile* file)
      : file_(file), staging_(static_cast<char*>(std::aligned_alloc(kPackAlign, kWriteBytes))) {}

  // `data` belongs at the current end, which is page-aligned. `digest` may be null.
  absl::Status Put(const char* data, uint64_t bytes, DigestStream* digest) {
    if (staging_ == nullptr)
      return absl::ResourceExhaustedError("no memory for the staging block of 4 MiB");
    const bool aligned = reinterpret_cast<uintptr_t>(data) % kPackAlign == 0;
    const uint64_t direct =
        aligned && bytes >= kWriteBytes / 4 ? bytes / kPackAlign * kPackAlign : 0;
    if (direct > 0) HF_RETURN_IF_ERROR(PutDirect(data, direct, digest));
    return PutStaged(data + direct, bytes - direct, digest);
  }

  absl::Status Flush() {
    if (filled_ == 0) return absl::OkStatus();
    HF_RETURN_IF_ERROR(file_->WriteAt(end_ - filled_, staging_.get(), filled_));
    filled_ = 0;
    return absl::OkStatus();
  }

  uint64_t end() const { return end_; }

 private:
  absl::Status PutDirect(const char* data, uint64_t bytes, DigestStream* digest) {
    HF_RETURN_IF_ERROR(Flush());
    for (uint64_t done = 0; done < bytes;) {
      const size_t block = static_cast<size_t>(std::min<uint64_t>(kWriteBytes, bytes - done));
      if (digest != nullptr) digest->Update(data + done, block);
      HF_RETURN_IF_ERROR(file_->WriteAt(end_, data + done, block));
      end_ += block;
      done += block;
    }
    return absl::OkStatus();
  }

  absl::Status PutStaged(const char* data, uint64_t bytes, DigestStream* digest) {
    for (uint64_t done = 0; done < bytes;) {
      if (filled_ == kWriteBytes) HF_RETURN_IF_ERROR(Flush());
      const size_t block =
          static_cast<size_t>(std::min<uint64_t>(kWriteBytes - filled_, bytes - done));
      std::memcpy(staging_.get() + filled_, data + done, block);
      // Of the copy: it is what goes to the disk.
      if (digest != nullptr) digest->Update(staging_.get() + filled_, block);
      filled_ += block;
      end_ += block;
      done += block;
    }
    const size_t padding = PackAlignUp(filled_) - filled_;
    std::memset(staging_.get() + filled_, 0, padding);
    filled_ += padding;
    end_ += padding;
    return absl::OkStatus();
  }

  WritableFile* const file_;
  const std::unique_ptr<char, FreeMemory> staging_;
  size_t filled_ = 0;
  uint64_t end_ = 0;  // of the file, what is staged included
};

absl::Status PutTensor(PageWriter* writer, const RankManifest& manifest, const TensorRecord& t,
                       const char* data) {
  if (writer->end() != t.pack_offset) {
    return absl::InternalError(absl::StrCat("tensor '", t.name, "' was laid out at ", t.pack_offset,
                                            ", the pack is at ", writer->end()));
  }
  DigestStream digest;
  HF_RETURN_IF_ERROR(writer->Put(data, t.bytes, &digest));
  if (digest.Finish() == t.digest) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("silent corruption: tensor '", t.name, "' of rank ", manifest.rank,
                   " in the snapshot ", ToString(manifest.id),
                   " does not match the digest taken when it was copied; nothing was saved"));
}

}  // namespace

absl::Status WritePack(FileSystem* fs, const std::string& path, uint64_t table_offset,
                       SourceView* source) {
  RankManifest& manifest = source->manifest;
  HF_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs->CreateBulk(path, {source->region}));
  HF_RETURN_IF_ERROR(file->Preallocate(manifest.pack_bytes));
  PageWriter writer(file.get());
  const std::string header = EncodePackHeader(manifest, table_offset);
  HF_RETURN_IF_ERROR(writer.Put(header.data(), header.size(), nullptr));
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const TensorRecord& t = manifest.tensors[i];
    if (t.pack_offset != 0) HF_RETURN_IF_ERROR(PutTensor(&writer, manifest, t, source->data[i]));
  }
  const std::string table = EncodePackTable(manifest);
  HF_RETURN_IF_ERROR(writer.Put(table.data(), table.size(), nullptr));
  HF_RETURN_IF_ERROR(writer.Flush());
  if (writer.end() != manifest.pack_bytes) {
    return absl::InternalError(
        absl::StrCat(path, ": laid out ", manifest.pack_bytes, " bytes, wrote ", writer.end()));
  }
  manifest.pack_digest = PackTableDigest(manifest);
  HF_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace holdfast::ckpt
