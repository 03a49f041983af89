// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/builder.h"
#include "worker/data/sentence_piece.h"

namespace holdfast::worker {
namespace {

constexpr int kByteTokens = 256;

class Bytes final : public Tokenizer {
 public:
  int64_t vocab() const override { return kByteTokens; }
  std::vector<int32_t> Encode(const std::string& document) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(document.size() + 1);
    for (const char c : document) tokens.push_back(static_cast<uint8_t>(c));
    tokens.push_back(0);  // text holds no NUL: it ends the document
    return tokens;
  }
  std::string Decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token != 0) text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

class Pieces final : public Tokenizer {
 public:
  explicit Pieces(std::unique_ptr<SentencePieceModel> model) : model_(std::move(model)) {}
  int64_t vocab() const override { return model_->size(); }
  std::vector<int32_t> Encode(const std::string& document) const override {
    std::vector<int32_t> tokens = model_->Encode(document);
    tokens.push_back(model_->end_id());
    return tokens;
  }
  std::string Decode(const std::vector<int32_t>& tokens) const override {
    return model_->Decode(tokens);
  }

 private:
  std::unique_ptr<SentencePieceModel> model_;
};

}  // namespace

std::unique_ptr<Tokenizer> ByteTokenizer() { return std::make_unique<Bytes>(); }

absl::StatusOr<std::unique_ptr<Tokenizer>> SentencePieceTokenizer(const std::string& model,
                                                                  const std::string& origin) {
  std::string error;
  std::unique_ptr<SentencePieceModel> loaded = SentencePieceModel::Load(model, &error);
  if (!loaded)
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": is not a SentencePiece model: ", error));
  if (loaded->end_id() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": has no end-of-sentence token, which ends documents"));
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<Pieces>(std::move(loaded)));
}

absl::StatusOr<std::string> TrainTokenizer(const std::vector<std::string>& documents,
                                           int64_t vocab) {
  std::string model, error;
  if (!TrainSentencePiece(documents, vocab, &model, &error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocab ", vocab, ": the tokenizer could not be trained: ", error));
  }
  return model;
}

}  // namespace holdfast::worker
