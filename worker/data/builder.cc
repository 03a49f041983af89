// SPDX-License-Identifier: Apache-2.0
#include "worker/data/builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/data/indexed_dataset.h"

namespace holdfast::worker {
namespace {

// Length of the valid UTF-8 sequence at `at`, 0 when there is none (overlong, surrogate, past
// U+10FFFF, cut short).
size_t SequenceLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

absl::StatusOr<std::string> ReadInput(FileSystem* fs, const std::string& path) {
  HF_ASSIGN_OR_RETURN(auto file, fs->OpenForRead(path));
  HF_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (bytes > kInputBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes; an input has at most 4 GiB, split it"));
  }
  std::string text(bytes, '\0');
  HF_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, text.data(), text.size()));
  text.resize(got);
  return text;
}

absl::Status CheckOptions(const BuildOptions& options) {
  if (options.inputs.empty())
    return absl::InvalidArgumentError("--input: name at least one text file");
  if (options.prefix.empty())
    return absl::InvalidArgumentError("--out: name the prefix of the files to write");
  if (options.byte_level && !options.tokenizer.empty()) {
    return absl::InvalidArgumentError("--byte-level and --tokenizer exclude each other");
  }
  if (options.byte_level && options.vocab != 0 && options.vocab != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocab ", options.vocab, ": with --byte-level it is 256"));
  }
  if (!options.byte_level && options.tokenizer.empty() &&
      (options.vocab < 300 || options.vocab > 1'000'000)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--vocab ", options.vocab,
        " is not a whole number from 300 to 1000000 (259 entries are bytes and marks)"));
  }
  return absl::OkStatus();
}

struct Corpus {
  std::vector<std::string> documents;
  uint64_t bytes = 0;
};

absl::StatusOr<Corpus> ReadCorpus(FileSystem* fs, const BuildOptions& options) {
  Corpus corpus;
  for (const std::string& path : options.inputs) {
    HF_ASSIGN_OR_RETURN(const std::string raw, ReadInput(fs, path));
    std::string text = ToUtf8(raw);
    corpus.bytes += text.size();
    std::vector<std::string> documents =
        options.whole_files ? std::vector<std::string>{std::move(text)} : SplitParagraphs(text);
    std::erase_if(documents, [](const std::string& document) { return document.empty(); });
    if (documents.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no text"));
    std::move(documents.begin(), documents.end(), std::back_inserter(corpus.documents));
  }
  return corpus;
}

absl::StatusOr<std::string> ModelFor(FileSystem* fs, const BuildOptions& options,
                                     const Corpus& corpus) {
  if (options.tokenizer.empty())
    return TrainTokenizer(SampleDocuments(corpus.documents, options.train_bytes), options.vocab);
  return ReadInput(fs, options.tokenizer);
}

}  // namespace

std::string ToUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
    if (length == 0) {
      const uint8_t latin = static_cast<uint8_t>(text[at++]);
      out.push_back(static_cast<char>(0xc0 | latin >> 6));
      out.push_back(static_cast<char>(0x80 | (latin & 0x3f)));
      continue;
    }
    if (text[at] != '\0') out.append(text.substr(at, length));
    at += length;
  }
  return out;
}

std::vector<std::string> SplitParagraphs(const std::string& text) {
  std::vector<std::string> paragraphs;
  std::string current;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool blank = line.find_first_not_of(" \t") == std::string::npos;
    if (!blank) absl::StrAppend(&current, current.empty() ? "" : "\n", line);
    if ((blank || end == text.size()) && !current.empty()) {
      paragraphs.push_back(std::move(current));
      current.clear();
    }
    at = end + 1;
  }
  return paragraphs;
}

std::vector<std::string> SampleDocuments(const std::vector<std::string>& documents,
                                         uint64_t bytes) {
  uint64_t total = 0;
  for (const std::string& document : documents) total += document.size();
  if (total <= bytes) return documents;
  std::vector<std::string> sample;
  uint64_t seen = 0, taken = 0;
  for (const std::string& document : documents) {
    seen += document.size();
    // Keep the taken share at or below bytes / total all along.
    if ((taken + document.size()) * static_cast<double>(total) > static_cast<double>(seen) * bytes)
      continue;
    taken += document.size();
    sample.push_back(document);
  }
  if (sample.empty()) sample.push_back(documents.front().substr(0, bytes));
  return sample;
}

absl::StatusOr<BuildResult> BuildData(FileSystem* fs, const BuildOptions& options) {
  HF_RETURN_IF_ERROR(CheckOptions(options));
  HF_ASSIGN_OR_RETURN(const Corpus corpus, ReadCorpus(fs, options));
  std::unique_ptr<Tokenizer> tokenizer = ByteTokenizer();
  std::string model;
  if (!options.byte_level) {
    HF_ASSIGN_OR_RETURN(model, ModelFor(fs, options, corpus));
    HF_ASSIGN_OR_RETURN(
        tokenizer, SentencePieceTokenizer(
                       model, options.tokenizer.empty() ? "the trained model" : options.tokenizer));
  }
  HF_ASSIGN_OR_RETURN(auto writer, IndexedDatasetWriter::Create(fs, options.prefix,
                                                                TokenTypeFor(tokenizer->vocab())));
  for (const std::string& document : corpus.documents)
    HF_RETURN_IF_ERROR(writer->AddDocument(tokenizer->Encode(document)));
  HF_RETURN_IF_ERROR(writer->Finish(model));
  return BuildResult{writer->documents(), writer->tokens(), corpus.bytes, tokenizer->vocab()};
}

}  // namespace holdfast::worker
