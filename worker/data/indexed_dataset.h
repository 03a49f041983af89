// SPDX-License-Identifier: Apache-2.0
// Token files in Megatron-LM's format: PREFIX.bin holds raw little-endian tokens, PREFIX.idx where
// each document lies. docs/train.md gives the bytes. One sequence is one document.
#ifndef HOLDFAST_WORKER_DATA_INDEXED_DATASET_H_
#define HOLDFAST_WORKER_DATA_INDEXED_DATASET_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace holdfast::worker {

// Element codes of the .idx header; others (floats, i64, ...) are refused: no token file has them.
enum class TokenType : uint8_t { kU8 = 1, kI32 = 4, kU16 = 8 };
uint32_t TokenBytes(TokenType type);
// u16 below 65,500 entries, else i32, as Megatron chooses.
TokenType TokenTypeFor(uint64_t vocab);

// The bytes of an .idx for documents of these lengths (in tokens).
std::string EncodeIndex(TokenType type, const std::vector<int32_t>& lengths);

// Writes PREFIX.bin and PREFIX.idx (and a tokenizer's PREFIX.model) under temporary names; Finish()
// renames them when all are durable, with no .idx under its name meanwhile: an old index never
// stands beside new tokens. What was not finished is removed.
class IndexedDatasetWriter {
 public:
  static absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> Create(FileSystem* fs,
                                                                      const std::string& prefix,
                                                                      TokenType type);
  ~IndexedDatasetWriter();
  // INVALID_ARGUMENT for a token outside the type or an empty or too long document.
  absl::Status AddDocument(const std::vector<int32_t>& tokens);
  absl::Status Finish(const std::string& tokenizer_model = "");
  uint64_t documents() const { return lengths_.size(); }
  uint64_t tokens() const { return tokens_; }

 private:
  IndexedDatasetWriter(FileSystem* fs, std::string prefix, TokenType type,
                       std::unique_ptr<WritableFile> bin);
  absl::Status Flush();
  absl::Status WriteTemporary(const std::string& suffix, const std::string& content);
  absl::Status PutInPlace(const std::string& suffix);

  FileSystem* fs_;
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<WritableFile> bin_;
  std::string buffer_;
  std::vector<int32_t> lengths_;
  uint64_t tokens_ = 0;
  bool finished_ = false;
};

// Reads any range of tokens. Threads: may be shared (reads are positioned).
class IndexedDataset {
 public:
  // Checks the whole .idx against itself and against the size of the .bin. NOT_FOUND for a missing
  // file, DATA_LOSS naming file and field for one that is cut short or does not match.
  static absl::StatusOr<std::unique_ptr<IndexedDataset>> Open(FileSystem* fs,
                                                              const std::string& prefix);

  uint64_t tokens() const { return tokens_; }
  uint64_t documents() const { return documents_; }
  TokenType type() const { return type_; }
  const std::string& bin_path() const { return bin_path_; }

  // Tokens [first, first + count) into `out`. DATA_LOSS when the file has become shorter.
  absl::Status Read(uint64_t first, uint64_t count, int64_t* out) const;

 private:
  IndexedDataset() = default;
  absl::Status ParseIndex(const std::string& path, const std::string& bytes);

  std::string bin_path_;
  std::unique_ptr<ReadableFile> bin_;
  TokenType type_ = TokenType::kU16;
  uint64_t tokens_ = 0, documents_ = 0;
};

// How often each token occurs; `counts` grows to the largest token + 1.
absl::Status CountTokens(const IndexedDataset& data, std::vector<uint64_t>* counts);
// Entropy in nats a token of the distribution that `counts` gives: what the best context-free guess
// loses.
double UnigramEntropy(const std::vector<uint64_t>& counts);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_DATA_INDEXED_DATASET_H_
