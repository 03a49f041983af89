// SPDX-License-Identifier: Apache-2.0
#include "worker/data/loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/data/indexed_dataset.h"
#include "worker/philox.h"

namespace holdfast::worker {
namespace {

class FileTokens final : public SampleSource {
 public:
  FileTokens(std::unique_ptr<IndexedDataset> data, uint64_t seed, int64_t seq_len, int64_t vocab)
      : data_(std::move(data)),
        seed_(seed),
        seq_len_(seq_len),
        vocab_(vocab),
        per_epoch_((data_->tokens() - 1) / seq_len) {}

  absl::Status Read(uint64_t sample, int64_t* out) const override {
    const uint64_t key = PhiloxKey(seed_, absl::StrCat("epoch.", sample / per_epoch_));
    const uint64_t first = PermutedIndex(key, per_epoch_, sample % per_epoch_) * seq_len_;
    HF_RETURN_IF_ERROR(data_->Read(first, seq_len_ + 1, out));
    for (int64_t i = 0; i <= seq_len_; ++i) {
      if (out[i] < 0 || out[i] >= vocab_) {
        return absl::DataLossError(absl::StrCat(data_->bin_path(), ": token ", first + i, " is ",
                                                out[i], ", but model.vocab is ", vocab_,
                                                "; set model.vocab to the tokenizer's"));
      }
    }
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<IndexedDataset> data_;
  uint64_t seed_;
  int64_t seq_len_, vocab_;
  uint64_t per_epoch_;
};

class RandomTokens final : public SampleSource {
 public:
  RandomTokens(uint64_t seed, int64_t seq_len, int64_t vocab)
      : key_(PhiloxKey(seed, "synthetic")), seq_len_(seq_len), vocab_(vocab) {}

  absl::Status Read(uint64_t sample, int64_t* out) const override {
    for (int64_t i = 0; i <= seq_len_; ++i) {
      out[i] = static_cast<int64_t>(Philox4x32(key_, sample, static_cast<uint64_t>(i) / 4)[i % 4] %
                                    static_cast<uint64_t>(vocab_));
    }
    return absl::OkStatus();
  }

 private:
  uint64_t key_;
  int64_t seq_len_, vocab_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> OpenTokens(FileSystem* fs, const std::string& prefix,
                                                         uint64_t seed, int64_t seq_len,
                                                         int64_t vocab) {
  HF_ASSIGN_OR_RETURN(auto data, IndexedDataset::Open(fs, prefix));
  if (data->tokens() < static_cast<uint64_t>(seq_len) + 1) {
    return absl::FailedPreconditionError(absl::StrCat(data->bin_path(), ": ", data->tokens(),
                                                      " tokens are fewer than one sample of ",
                                                      "model.seq_len + 1 = ", seq_len + 1));
  }
  return std::unique_ptr<SampleSource>(new FileTokens(std::move(data), seed, seq_len, vocab));
}

std::unique_ptr<SampleSource> SyntheticTokens(uint64_t seed, int64_t seq_len, int64_t vocab) {
  return std::make_unique<RandomTokens>(seed, seq_len, vocab);
}

uint64_t FirstSample(const BatchPlace& place) {
  return place.consumed + static_cast<uint64_t>((place.micro_batch * place.dp + place.dp_index) *
                                                place.micro_batch_size);
}

}  // namespace holdfast::worker
