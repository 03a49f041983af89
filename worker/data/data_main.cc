// SPDX-License-Identifier: Apache-2.0
// holdfast-data: text to token files, and a look into token files.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "worker/data/builder.h"
#include "worker/data/indexed_dataset.h"
#include "worker/exit_codes.h"

namespace holdfast::worker {
namespace {

absl::Status Build(const BuildOptions& options, bool json) {
  HF_ASSIGN_OR_RETURN(const BuildResult result, BuildData(PosixFileSystem(), options));
  if (json) {
    const nlohmann::ordered_json out = {{"prefix", options.prefix},
                                        {"documents", result.documents},
                                        {"tokens", result.tokens},
                                        {"text_bytes", result.text_bytes},
                                        {"vocab", result.vocab}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf(
        "%s: %llu documents, %llu tokens of a vocabulary of %lld, from %llu bytes of text\n",
        options.prefix.c_str(), static_cast<unsigned long long>(result.documents),
        static_cast<unsigned long long>(result.tokens), static_cast<long long>(result.vocab),
        static_cast<unsigned long long>(result.text_bytes));
  }
  return absl::OkStatus();
}

absl::Status Inspect(const std::string& prefix, bool json) {
  HF_ASSIGN_OR_RETURN(const auto data, IndexedDataset::Open(PosixFileSystem(), prefix));
  std::vector<uint64_t> counts;
  HF_RETURN_IF_ERROR(CountTokens(*data, &counts));
  uint64_t distinct = 0;
  for (const uint64_t n : counts) distinct += n > 0;
  const double entropy = UnigramEntropy(counts);
  const uint64_t largest = counts.empty() ? 0 : counts.size() - 1;
  if (json) {
    const nlohmann::ordered_json out = {{"prefix", prefix},
                                        {"documents", data->documents()},
                                        {"tokens", data->tokens()},
                                        {"token_bytes", TokenBytes(data->type())},
                                        {"largest_token", largest},
                                        {"distinct_tokens", distinct},
                                        {"unigram_entropy_nats", entropy}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf(
        "%s: %llu documents, %llu tokens of %u bytes, largest %llu, %llu distinct; unigram entropy "
        "%.6f nats a token\n",
        prefix.c_str(), static_cast<unsigned long long>(data->documents()),
        static_cast<unsigned long long>(data->tokens()), TokenBytes(data->type()),
        static_cast<unsigned long long>(largest), static_cast<unsigned long long>(distinct),
        entropy);
  }
  return absl::OkStatus();
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-data: %s\n", std::string(status.message()).c_str());
  if (absl::IsNotFound(status)) return kExitData;
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitInternal;
}

}  // namespace
}  // namespace holdfast::worker

int main(int argc, char** argv) {
  using namespace holdfast::worker;
  CLI::App app(
      "Token files for the native trainer, in Megatron-LM's format (PREFIX.bin, PREFIX.idx).");
  app.require_subcommand(1);
  BuildOptions options;
  std::string prefix;
  bool json = false;
  auto* build = app.add_subcommand(
      "build",
      "Text files to token files; trains a SentencePiece BPE on them and saves it as PREFIX.model");
  build
      ->add_option("--input", options.inputs,
                   "Text files; bytes that are not UTF-8 are read as Latin-1")
      ->required();
  build->add_option("--out", options.prefix, "Prefix of the files to write")->required();
  build->add_option("--vocab", options.vocab, "Entries of the tokenizer to train");
  build->add_option("--tokenizer", options.tokenizer,
                    "Use this SentencePiece .model instead of training one");
  build->add_flag("--byte-level", options.byte_level,
                  "Bytes are tokens (vocabulary 256; 0 ends a document)");
  build->add_flag("--whole-files", options.whole_files,
                  "A document is a file, not a paragraph (lines between blank lines)");
  build
      ->add_option("--train-bytes", options.train_bytes,
                   "Bytes of text, evenly spread, that the tokenizer is trained on")
      ->capture_default_str();
  build->add_flag("--json", json, "One JSON object");
  auto* inspect =
      app.add_subcommand("inspect", "Check .idx against .bin; counts and unigram entropy");
  inspect->add_option("PREFIX", prefix, "Prefix of the files")->required();
  inspect->add_flag("--json", json, "One JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return Report(build->parsed() ? Build(options, json) : Inspect(prefix, json));
}
