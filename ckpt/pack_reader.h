// SPDX-License-Identifier: Apache-2.0
// Reads one pack. Nothing is believed: the header page must be what the manifest implies, and every
// box is digested while it is read. Errors name the file, the offset and the tensor.
#ifndef HOLDFAST_CKPT_PACK_READER_H_
#define HOLDFAST_CKPT_PACK_READER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

class PackReader {
 public:
  // Sees a piece of a box: bytes [begin, begin + bytes).
  using Consumer = std::function<void(uint64_t begin, const char* data, size_t bytes)>;

  // Checks size and header page. `manifest` must outlive the reader and be valid (it comes out of a
  // commit record).
  static absl::StatusOr<std::unique_ptr<PackReader>> Open(FileSystem* fs, const std::string& path,
                                                          const RankManifest& manifest);

  // Streams a written box of the manifest through `consumer`, then compares its digest: bytes are
  // good only after OK.
  absl::Status ReadTensor(const TensorRecord& tensor, const Consumer& consumer) const;
  // The same, straight into `out` (tensor.bytes).
  absl::Status ReadTensorInto(const TensorRecord& tensor, void* out) const;
  // Every byte of the pack, padding and table included. `progress` gets the bytes read since its
  // last call.
  absl::Status VerifyAll(const std::function<void(uint64_t bytes)>& progress) const;

 private:
  PackReader(std::unique_ptr<ReadableFile> file, std::string path, const RankManifest& manifest);
  absl::Status Read(uint64_t offset, void* out, size_t bytes) const;
  absl::Status CheckHeader() const;
  absl::Status CheckDigest(const TensorRecord& tensor, const rank::Digest128& digest) const;
  absl::Status CheckZero(uint64_t from, uint64_t to) const;
  absl::Status CheckTable() const;
  uint64_t TableOffset() const;

  const std::unique_ptr<ReadableFile> file_;
  const std::string path_;
  const RankManifest& manifest_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PACK_READER_H_
