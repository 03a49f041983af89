// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentence_piece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <unordered_map>

namespace holdfast::worker {
namespace {

// Lines of the documents, for the trainer: a piece never crosses a line.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& documents) : documents_(documents) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    do {
      if (document_ >= documents_.size()) {
        done_ = true;
        return;
      }
      const std::string& text = documents_[document_];
      const size_t end = text.find('\n', at_);
      line_ = text.substr(at_, end == std::string::npos ? std::string::npos : end - at_);
      at_ = end == std::string::npos ? 0 : end + 1;
      if (end == std::string::npos) ++document_;
    } while (line_.empty());
  }

 private:
  const std::vector<std::string>& documents_;
  size_t document_ = 0, at_ = 0;
  std::string line_;
  bool done_ = false;
};

}  // namespace

struct SentencePieceModel::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel() : impl_(std::make_unique<Impl>()) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(const std::string& model,
                                                             std::string* error) {
  std::unique_ptr<SentencePieceModel> loaded(new SentencePieceModel());
  const auto status = loaded->impl_->processor.LoadFromSerializedProto(model);
  if (status.ok()) return loaded;
  *error = status.ToString();
  return nullptr;
}

int SentencePieceModel::size() const { return impl_->processor.GetPieceSize(); }
int SentencePieceModel::end_id() const { return impl_->processor.eos_id(); }
std::vector<int> SentencePieceModel::Encode(const std::string& text) const {
  return impl_->processor.EncodeAsIds(text);
}
std::string SentencePieceModel::Decode(const std::vector<int>& tokens) const {
  return impl_->processor.DecodeIds(tokens);
}

bool TrainSentencePiece(const std::vector<std::string>& documents, int64_t vocab,
                        std::string* model, std::string* error) {
  // Identity normalisation and byte fallback: decoding gives back every byte of the text. One
  // thread, no sampling: the same text gives the same model. Only errors are logged.
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"character_coverage", "0.9995"},
      {"num_threads", "1"},
      {"input_sentence_size", "0"},
      {"shuffle_input_sentence", "false"},
      {"max_sentence_length", "16384"},
      {"minloglevel", "2"},
  };
  Lines lines(documents);
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, model);
  if (!status.ok()) *error = status.ToString();
  return status.ok();
}

}  // namespace holdfast::worker
