// SPDX-License-Identifier: Apache-2.0
#include "worker/data/indexed_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::worker {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = sizeof(kMagic) + 8 + 1 + 8 + 8;
constexpr size_t kFlushBytes = 4 << 20;
constexpr uint64_t kReadTokens = 1 << 16;
constexpr char kTemporary[] = ".tmp";
constexpr const char* kSuffixes[] = {".bin", ".idx", ".model"};
constexpr uint64_t kIndexBytesMax = 1ull << 30;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

absl::Status Lost(const std::string& path, const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(path, ": ", what, "; build the data again with `holdfast data build`"));
}

}  // namespace

uint32_t TokenBytes(TokenType type) {
  return type == TokenType::kU8 ? 1 : type == TokenType::kU16 ? 2 : 4;
}

TokenType TokenTypeFor(uint64_t vocab) {
  return vocab < 65'500 ? TokenType::kU16 : TokenType::kI32;
}

std::string EncodeIndex(TokenType type, const std::vector<int32_t>& lengths) {
  std::string out(kMagic, sizeof(kMagic));
  Put<uint64_t>(&out, kVersion);
  Put<uint8_t>(&out, static_cast<uint8_t>(type));
  Put<uint64_t>(&out, lengths.size());
  Put<uint64_t>(&out, lengths.size() + 1);
  for (const int32_t length : lengths) Put(&out, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    Put(&out, pointer);
    pointer += static_cast<int64_t>(length) * TokenBytes(type);
  }
  for (size_t i = 0; i <= lengths.size(); ++i) Put<int64_t>(&out, static_cast<int64_t>(i));
  return out;
}

IndexedDatasetWriter::IndexedDatasetWriter(FileSystem* fs, std::string prefix, TokenType type,
                                           std::unique_ptr<WritableFile> bin)
    : fs_(fs), prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)) {}

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Create(
    FileSystem* fs, const std::string& prefix, TokenType type) {
  for (const char* suffix : kSuffixes) {
    IgnoreError(fs->Remove(absl::StrCat(prefix, suffix, kTemporary)),
                "a leftover of a build that was killed, or nothing");
  }
  HF_ASSIGN_OR_RETURN(auto bin, fs->CreateExclusive(absl::StrCat(prefix, ".bin", kTemporary)));
  return std::unique_ptr<IndexedDatasetWriter>(
      new IndexedDatasetWriter(fs, prefix, type, std::move(bin)));
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (finished_) return;
  bin_.reset();
  for (const char* suffix : kSuffixes) {
    IgnoreError(fs_->Remove(absl::StrCat(prefix_, suffix, kTemporary)),
                "the build failed; its error is what the user sees");
  }
}

absl::Status IndexedDatasetWriter::AddDocument(const std::vector<int32_t>& tokens) {
  if (tokens.empty()) return absl::InvalidArgumentError("a document has no tokens");
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("a document of ", tokens.size(),
                                                   " tokens: at most 2147483647 fit the format"));
  }
  const int64_t limit = type_ == TokenType::kU8    ? 0xff
                        : type_ == TokenType::kU16 ? 0xffff
                                                   : 0x7fffffff;
  for (const int32_t token : tokens) {
    if (token < 0 || token > limit)
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is outside 0..", limit));
    switch (type_) {
      case TokenType::kU8:
        Put<uint8_t>(&buffer_, static_cast<uint8_t>(token));
        break;
      case TokenType::kU16:
        Put<uint16_t>(&buffer_, static_cast<uint16_t>(token));
        break;
      case TokenType::kI32:
        Put<int32_t>(&buffer_, token);
        break;
    }
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += tokens.size();
  return buffer_.size() >= kFlushBytes ? Flush() : absl::OkStatus();
}

absl::Status IndexedDatasetWriter::Flush() {
  HF_RETURN_IF_ERROR(bin_->Append(buffer_.data(), buffer_.size()));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::WriteTemporary(const std::string& suffix,
                                                  const std::string& content) {
  HF_ASSIGN_OR_RETURN(auto file, fs_->CreateExclusive(absl::StrCat(prefix_, suffix, kTemporary)));
  HF_RETURN_IF_ERROR(file->Append(content.data(), content.size()));
  HF_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status IndexedDatasetWriter::PutInPlace(const std::string& suffix) {
  return fs_->Rename(absl::StrCat(prefix_, suffix, kTemporary), prefix_ + suffix);
}

absl::Status IndexedDatasetWriter::Finish(const std::string& tokenizer_model) {
  HF_RETURN_IF_ERROR(Flush());
  HF_RETURN_IF_ERROR(bin_->Sync());
  HF_RETURN_IF_ERROR(bin_->Close());
  HF_RETURN_IF_ERROR(WriteTemporary(".idx", EncodeIndex(type_, lengths_)));
  if (!tokenizer_model.empty()) HF_RETURN_IF_ERROR(WriteTemporary(".model", tokenizer_model));
  HF_ASSIGN_OR_RETURN(const bool replaces, fs_->Exists(prefix_ + ".idx"));
  if (replaces) {
    HF_RETURN_IF_ERROR(fs_->Remove(prefix_ + ".idx"));
    HF_RETURN_IF_ERROR(fs_->SyncDir(DirName(prefix_)));
  }
  if (!tokenizer_model.empty()) HF_RETURN_IF_ERROR(PutInPlace(".model"));
  HF_RETURN_IF_ERROR(PutInPlace(".bin"));
  HF_RETURN_IF_ERROR(PutInPlace(".idx"));
  finished_ = true;
  return fs_->SyncDir(DirName(prefix_));
}

absl::StatusOr<std::unique_ptr<IndexedDataset>> IndexedDataset::Open(FileSystem* fs,
                                                                     const std::string& prefix) {
  auto data = std::unique_ptr<IndexedDataset>(new IndexedDataset());
  data->bin_path_ = prefix + ".bin";
  const std::string index_path = prefix + ".idx";
  HF_ASSIGN_OR_RETURN(data->bin_, fs->OpenForRead(data->bin_path_));
  HF_ASSIGN_OR_RETURN(auto index, fs->OpenForRead(index_path));
  HF_ASSIGN_OR_RETURN(const uint64_t index_bytes, index->Size());
  if (index_bytes > kIndexBytesMax)
    return Lost(index_path,
                absl::StrCat("is ", index_bytes, " bytes, more than the limit of 1 GiB"));
  std::string bytes(index_bytes, '\0');
  HF_ASSIGN_OR_RETURN(const size_t got, index->ReadAt(0, bytes.data(), bytes.size()));
  bytes.resize(got);
  HF_RETURN_IF_ERROR(data->ParseIndex(index_path, bytes));
  HF_ASSIGN_OR_RETURN(const uint64_t bin_bytes, data->bin_->Size());
  const uint64_t expected = data->tokens_ * TokenBytes(data->type_);
  if (bin_bytes != expected) {
    return Lost(
        data->bin_path_,
        absl::StrCat("is ", bin_bytes, " bytes, but ", index_path, " describes ", expected, " (",
                     data->tokens_, " tokens): ",
                     bin_bytes < expected ? "it is cut short" : "the two do not belong together"));
  }
  return data;
}

absl::Status IndexedDataset::ParseIndex(const std::string& path, const std::string& bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return Lost(path, "is not an .idx of the Megatron format (its first 9 bytes are not MMIDIDX)");
  }
  const uint64_t version = Take<uint64_t>(bytes, 9), sequences = Take<uint64_t>(bytes, 18),
                 entries = Take<uint64_t>(bytes, 26);
  const uint8_t code = Take<uint8_t>(bytes, 17);
  if (version != kVersion)
    return Lost(path, absl::StrCat("has version ", version, ", only 1 is known"));
  if (code != 1 && code != 4 && code != 8)
    return Lost(path,
                absl::StrCat("has element type ", code, ": tokens are 1 (u8), 4 (i32) or 8 (u16)"));
  type_ = static_cast<TokenType>(code);
  if (sequences == 0 || sequences > bytes.size() || entries == 0 || entries > bytes.size() ||
      bytes.size() < kHeaderBytes + sequences * 12 + entries * 8) {
    return Lost(path, absl::StrCat("is cut short: ", bytes.size(), " bytes for ", sequences,
                                   " sequences and ", entries, " document entries"));
  }
  const size_t lengths = kHeaderBytes, pointers = lengths + sequences * 4,
               ends = pointers + sequences * 8;
  uint64_t total = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = Take<int32_t>(bytes, lengths + i * 4);
    const int64_t pointer = Take<int64_t>(bytes, pointers + i * 8);
    if (length < 0) return Lost(path, absl::StrCat("sequence ", i, " has length ", length));
    if (pointer < 0 || static_cast<uint64_t>(pointer) != total * TokenBytes(type_)) {
      return Lost(path, absl::StrCat("sequence ", i, " begins at byte ", pointer,
                                     ", the ones before it end at ", total * TokenBytes(type_)));
    }
    total += static_cast<uint64_t>(length);
  }
  int64_t before = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    const int64_t entry = Take<int64_t>(bytes, ends + i * 8);
    if (entry < before || (i == 0 && entry != 0) || entry > static_cast<int64_t>(sequences)) {
      return Lost(path,
                  absl::StrCat("document entry ", i, " is ", entry,
                               ", which is out of order or past the ", sequences, " sequences"));
    }
    before = entry;
  }
  if (before != static_cast<int64_t>(sequences))
    return Lost(path, absl::StrCat("documents end at sequence ", before, " of ", sequences));
  tokens_ = total;
  documents_ = entries - 1;
  return absl::OkStatus();
}

absl::Status IndexedDataset::Read(uint64_t first, uint64_t count, int64_t* out) const {
  if (first > tokens_ || count > tokens_ - first) {
    return absl::InvalidArgumentError(absl::StrCat(bin_path_, ": tokens ", first, "..",
                                                   first + count, " are past its end, ", tokens_));
  }
  const uint32_t width = TokenBytes(type_);
  std::vector<uint8_t> raw(count * width);
  HF_ASSIGN_OR_RETURN(const size_t got, bin_->ReadAt(first * width, raw.data(), raw.size()));
  if (got != raw.size()) {
    return Lost(bin_path_, absl::StrCat("ends at byte ", first * width + got,
                                        " now: it became shorter while it was in use"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t* at = raw.data() + i * width;
    out[i] = width == 1   ? at[0]
             : width == 2 ? at[0] | at[1] << 8
                          : static_cast<int32_t>(at[0] | at[1] << 8 | at[2] << 16 |
                                                 static_cast<uint32_t>(at[3]) << 24);
  }
  return absl::OkStatus();
}

absl::Status CountTokens(const IndexedDataset& data, std::vector<uint64_t>* counts) {
  std::vector<int64_t> chunk(kReadTokens);
  for (uint64_t at = 0; at < data.tokens(); at += kReadTokens) {
    const uint64_t n = std::min(kReadTokens, data.tokens() - at);
    HF_RETURN_IF_ERROR(data.Read(at, n, chunk.data()));
    for (uint64_t i = 0; i < n; ++i) {
      if (chunk[i] < 0 || chunk[i] > 0xffffff) {
        return Lost(data.bin_path(),
                    absl::StrCat("token ", at + i, " is ", chunk[i], ", outside every vocabulary"));
      }
      if (counts->size() <= static_cast<size_t>(chunk[i])) counts->resize(chunk[i] + 1);
      ++(*counts)[chunk[i]];
    }
  }
  return absl::OkStatus();
}

double UnigramEntropy(const std::vector<uint64_t>& counts) {
  double total = 0, sum = 0;
  for (const uint64_t n : counts) total += static_cast<double>(n);
  for (const uint64_t n : counts) {
    if (n > 0) sum -= n / total * std::log(n / total);
  }
  return sum;
}

}  // namespace holdfast::worker
