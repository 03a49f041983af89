// SPDX-License-Identifier: Apache-2.0
#include "ckpt/pack_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ckpt/digest_stream.h"
#include "ckpt/format/digest_text.h"
#include "ckpt/format/pack.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kReadBytes = 4 << 20;
constexpr size_t kDigestBlockBytes = 128 << 10;

// A pack of a version that this program does not know is not damaged: say so.
bool IsNewerPack(const std::string& page) {
  PackHeader header;
  std::memcpy(&header, page.data(), sizeof header);
  return header.magic == kPackMagic && header.version > kPackVersion;
}

size_t FirstDifference(const std::string& a, const std::string& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

}  // namespace

PackReader::PackReader(std::unique_ptr<ReadableFile> file, std::string path,
                       const RankManifest& manifest)
    : file_(std::move(file)), path_(std::move(path)), manifest_(manifest) {}

absl::StatusOr<std::unique_ptr<PackReader>> PackReader::Open(FileSystem* fs,
                                                             const std::string& path,
                                                             const RankManifest& manifest) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, fs->OpenForRead(path));
  HF_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size != manifest.pack_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes at offset ",
                                            std::min(size, manifest.pack_bytes),
                                            " where the commit record says the file has ",
                                            manifest.pack_bytes, "; it was cut or extended"));
  }
  std::unique_ptr<PackReader> reader(new PackReader(std::move(file), path, manifest));
  HF_RETURN_IF_ERROR(reader->CheckHeader());
  return reader;
}

uint64_t PackReader::TableOffset() const {
  return manifest_.pack_bytes - EncodePackTable(manifest_).size();
}

absl::Status PackReader::Read(uint64_t offset, void* out, size_t bytes) const {
  HF_ASSIGN_OR_RETURN(const size_t got, file_->ReadAt(offset, out, bytes));
  if (got == bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, ": ends at offset ", offset + got, ", inside what must be read"));
}

absl::Status PackReader::CheckHeader() const {
  std::string page(kPackAlign, '\0');
  HF_RETURN_IF_ERROR(Read(0, page.data(), page.size()));
  const std::string expected = EncodePackHeader(manifest_, TableOffset());
  if (page == expected) return absl::OkStatus();
  if (IsNewerPack(page)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": a pack of a newer version than this program reads (", kPackVersion, ")"));
  }
  return absl::DataLossError(absl::StrCat(path_, ": the header differs at offset ",
                                          FirstDifference(page, expected),
                                          " from what the commit record says"));
}

absl::Status PackReader::CheckDigest(const TensorRecord& tensor,
                                     const rank::Digest128& digest) const {
  if (digest == tensor.digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": tensor '", tensor.name, "' at offset ",
                                          tensor.pack_offset, ": its ", tensor.bytes,
                                          " bytes have digest ", DigestHex(digest),
                                          ", the commit record says ", DigestHex(tensor.digest)));
}

absl::Status PackReader::ReadTensor(const TensorRecord& tensor, const Consumer& consumer) const {
  std::vector<char> block(static_cast<size_t>(std::min<uint64_t>(kReadBytes, tensor.bytes)));
  DigestStream digest;
  for (uint64_t done = 0; done < tensor.bytes;) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), tensor.bytes - done));
    if (absl::Status read = Read(tensor.pack_offset + done, block.data(), bytes); !read.ok()) {
      return Annotate(read, absl::StrCat("tensor '", tensor.name, "'"));
    }
    digest.Update(block.data(), bytes);
    consumer(done, block.data(), bytes);
    done += bytes;
  }
  return CheckDigest(tensor, digest.Finish());
}

absl::Status PackReader::ReadTensorInto(const TensorRecord& tensor, void* out) const {
  DigestStream digest;
  char* to = static_cast<char*>(out);
  for (uint64_t done = 0; done < tensor.bytes;) {
    // Small enough that the digest finds the bytes in the cache.
    const size_t bytes =
        static_cast<size_t>(std::min<uint64_t>(kDigestBlockBytes, tensor.bytes - done));
    if (absl::Status read = Read(tensor.pack_offset + done, to + done, bytes); !read.ok()) {
      return Annotate(read, absl::StrCat("tensor '", tensor.name, "'"));
    }
    digest.Update(to + done, bytes);
    done += bytes;
  }
  return CheckDigest(tensor, digest.Finish());
}

absl::Status PackReader::CheckZero(uint64_t from, uint64_t to) const {
  std::string padding;
  while (from < to) {
    padding.resize(static_cast<size_t>(std::min<uint64_t>(kReadBytes, to - from)));
    HF_RETURN_IF_ERROR(Read(from, padding.data(), padding.size()));
    if (const size_t at = padding.find_first_not_of('\0'); at != std::string::npos) {
      return absl::DataLossError(absl::StrCat(path_, ": the padding holds a byte at offset ",
                                              from + at, " that is not zero"));
    }
    from += padding.size();
  }
  return absl::OkStatus();
}

absl::Status PackReader::CheckTable() const {
  const std::string expected = EncodePackTable(manifest_);
  std::string table(expected.size(), '\0');
  HF_RETURN_IF_ERROR(Read(TableOffset(), table.data(), table.size()));
  if (table != expected) {
    return absl::DataLossError(absl::StrCat(path_, ": the table of records differs at offset ",
                                            TableOffset() + FirstDifference(table, expected),
                                            " from what the commit record says"));
  }
  if (PackTableDigest(manifest_) == manifest_.pack_digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_, ": the table of records does not have the digest that the commit record says"));
}

absl::Status PackReader::VerifyAll(const std::function<void(uint64_t bytes)>& progress) const {
  std::vector<const TensorRecord*> written;
  for (const TensorRecord& t : manifest_.tensors) {
    if (t.pack_offset != 0) written.push_back(&t);
  }
  std::sort(written.begin(), written.end(), [](const TensorRecord* a, const TensorRecord* b) {
    return a->pack_offset < b->pack_offset;
  });
  uint64_t cursor = kPackAlign;
  for (const TensorRecord* t : written) {
    HF_RETURN_IF_ERROR(CheckZero(cursor, t->pack_offset));
    HF_RETURN_IF_ERROR(ReadTensor(*t, [&](uint64_t, const char*, size_t bytes) {
      if (progress) progress(bytes);
    }));
    cursor = t->pack_offset + t->bytes;
  }
  HF_RETURN_IF_ERROR(CheckZero(cursor, TableOffset()));
  return CheckTable();
}

}  // namespace holdfast::ckpt
