// SPDX-License-Identifier: Apache-2.0
// SentencePiece without its headers: those put std::string_view into namespace absl, where Abseil's
// own is, so that no file can include both. Errors are plain texts. One thread.
#ifndef HOLDFAST_WORKER_DATA_SENTENCE_PIECE_H_
#define HOLDFAST_WORKER_DATA_SENTENCE_PIECE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace holdfast::worker {

class SentencePieceModel {
 public:
  // Null with the reason in `error` when `model` (the contents of a .model file) is not one.
  static std::unique_ptr<SentencePieceModel> Load(const std::string& model, std::string* error);
  ~SentencePieceModel();
  int size() const;
  int end_id() const;  // the end-of-sentence token; -1: none
  std::vector<int> Encode(const std::string& text) const;
  std::string Decode(const std::vector<int>& tokens) const;

 private:
  SentencePieceModel();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Trains a BPE of `vocab` entries on the lines of `documents`; false with the reason in `error`.
bool TrainSentencePiece(const std::vector<std::string>& documents, int64_t vocab,
                        std::string* model, std::string* error);

}  // namespace holdfast::worker

#endif  // HOLDFAST_WORKER_DATA_SENTENCE_PIECE_H_
