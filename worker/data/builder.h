// SPDX-License-Identifier: Apache-2.0
// Text files to token files: split into documents, train a tokenizer (or take one), encode, write
// PREFIX.bin/.idx and PREFIX.model. Everything is a function of the inputs and options: built
// twice, the bytes are the same.
#ifndef HOLDFAST_WORKER_DATA_BUILDER_H_
#define HOLDFAST_WORKER_DATA_BUILDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace holdfast::worker {

inline constexpr uint64_t kInputBytesMax = 4ull << 30;  // a file
inline constexpr uint64_t kTrainBytesDefault = 8ull
                                               << 20;  // of text that the tokenizer is trained on

struct BuildOptions {
  std::vector<std::string> inputs;
  std::string prefix;
  int64_t vocab = 0;           // entries of the tokenizer to train; 256 for bytes
  std::string tokenizer = {};  // an existing .model; empty: train one
  bool byte_level = false;     // token = byte; no tokenizer
  bool whole_files = false;    // a document is a file instead of a paragraph
  uint64_t train_bytes = kTrainBytesDefault;
};

struct BuildResult {
  uint64_t documents = 0, tokens = 0, text_bytes = 0;
  int64_t vocab = 0;
};

// Turns text into tokens, with an end-of-document token behind each document. One thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab() const = 0;
  virtual std::vector<int32_t> Encode(const std::string& document) const = 0;
  virtual std::string Decode(const std::vector<int32_t>& tokens) const = 0;
};

std::unique_ptr<Tokenizer> ByteTokenizer();
// `model` is the contents of a SentencePiece .model file.
absl::StatusOr<std::unique_ptr<Tokenizer>> SentencePieceTokenizer(const std::string& model,
                                                                  const std::string& origin);
// Trains a BPE of `vocab` entries on `documents`; returns the contents of a .model file.
absl::StatusOr<std::string> TrainTokenizer(const std::vector<std::string>& documents,
                                           int64_t vocab);

// Valid UTF-8 of `text`: bytes that are not are read as Latin-1. NULs are dropped: no text has
// them, and SentencePiece ends there.
std::string ToUtf8(std::string_view text);

// Paragraphs: runs of lines between blank ones, without the newline at the end. Carriage returns
// before a newline are dropped.
std::vector<std::string> SplitParagraphs(const std::string& text);

// Every document, or as many, evenly spread, as fit into `bytes`.
std::vector<std::string> SampleDocuments(const std::vector<std::string>& documents, uint64_t bytes);

absl::StatusOr<BuildResult> BuildData(FileSystem* fs, const BuildOptions& options);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_DATA_BUILDER_H_
