// SPDX-License-Identifier: Apache-2.0
#include "ckpt/format/manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ckpt/format/digest_text.h"
#include "ckpt/format/validate.h"

namespace holdfast::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kTextVersion = 1;
constexpr std::string_view kManifestKind = "manifest";
constexpr std::string_view kCommitKind = "commit";

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// ---- Encoding ----

std::string Seal(std::string_view kind, const Json& json) {
  // Names are printable ASCII; `replace` only keeps dump() from throwing on what a decoder would
  // refuse anyway.
  const std::string body = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return absl::StrCat("holdfast-", View(kind), " ", kTextVersion, " ",
                      DigestHex(Xxh128(body.data(), body.size())), " ", body.size(), "\n", body);
}

Json TensorJson(const TensorRecord& t) {
  const char* dtype = rank::DTypeName(t.dtype);
  Json json;
  json["name"] = t.name;
  json["dtype"] = dtype == nullptr ? "unknown" : dtype;
  json["shape"] = t.global_shape;
  json["offset"] = t.box.offset;
  json["size"] = t.box.size;
  json["replica"] = t.replica;
  json["bytes"] = t.bytes;
  json["digest"] = DigestHex(t.digest);
  json["pack_offset"] = t.pack_offset;
  return json;
}

Json ManifestJson(const RankManifest& m) {
  Json json;
  json["job"] = m.id.job.value;
  json["attempt"] = m.id.attempt;
  json["step"] = m.id.step;
  json["rank"] = m.rank;
  json["world_size"] = m.world_size;
  json["samples"] = m.samples;
  json["pack"] = m.pack;
  json["pack_bytes"] = m.pack_bytes;
  json["pack_digest"] = DigestHex(m.pack_digest);
  json["tensors"] = Json::array();
  for (const TensorRecord& t : m.tensors) json["tensors"].push_back(TensorJson(t));
  return json;
}

// ---- Decoding ----

// Reads the fields of one object, remembering the first that is missing, of the wrong type or out
// of range. No exception can leave it: the type is checked before each access.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) Fail("", "must be an object");
  }

  uint64_t U64(const char* field, uint64_t max = std::numeric_limits<uint64_t>::max()) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned())
      return Fail(field, "must be a number that is not negative"), 0;
    const uint64_t number = value->get<uint64_t>();
    if (number > max) return Fail(field, absl::StrCat(number, " is above ", max)), 0;
    return number;
  }

  uint32_t U32(const char* field) {
    return static_cast<uint32_t>(U64(field, std::numeric_limits<uint32_t>::max()));
  }

  std::string Text(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(field, "must be a string"), "";
    return value->get_ref<const std::string&>();
  }

  rank::Digest128 Digest(const char* field) {
    rank::Digest128 digest;
    const std::string text = Text(field);
    if (status_.ok() && !ParseDigestHex(text, &digest))
      Fail(field, "must be 32 lower-case hexadecimal digits");
    return digest;
  }

  std::vector<uint64_t> Numbers(const char* field) {
    std::vector<uint64_t> numbers;
    const Json* value = Array(field, rank::kDimsMax);
    if (value == nullptr) return numbers;
    for (const Json& item : *value) {
      if (!item.is_number_unsigned())
        return Fail(field, "must hold numbers that are not negative"), numbers;
      numbers.push_back(item.get<uint64_t>());
    }
    return numbers;
  }

  const Json* Array(const char* field, size_t max) {
    const Json* value = Find(field);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) return Fail(field, "must be an array"), nullptr;
    if (value->size() > max)
      return Fail(field, absl::StrCat("has ", value->size(), " items, above ", max)), nullptr;
    return value;
  }

  // OK if every field asked for was good and there is no other.
  absl::Status Finish() {
    if (status_.ok() && json_.size() != asked_.size()) {
      for (const auto& item : json_.items()) {
        if (std::find(asked_.begin(), asked_.end(), item.key()) == asked_.end())
          Fail(item.key(), "unknown field");
      }
    }
    return status_;
  }

 private:
  const Json* Find(const char* field) {
    if (!status_.ok()) return nullptr;
    asked_.emplace_back(field);
    const auto found = json_.find(field);
    if (found != json_.end()) return &*found;
    Fail(field, "missing");
    return nullptr;
  }

  void Fail(const std::string& field, const std::string& what) {
    if (!status_.ok()) return;
    const char* dot = where_.empty() || field.empty() ? "" : ".";
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, dot, field, ": ", what));
  }

  const Json& json_;
  const std::string where_;
  std::vector<std::string> asked_;
  absl::Status status_;
};

bool ParseU64(std::string_view text, uint64_t* out) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// The four words of the first line.
bool SplitHead(std::string_view head, std::string_view (&words)[4]) {
  for (int i = 0; i < 4; ++i) {
    const size_t space = head.find(' ');
    if ((space == std::string_view::npos) != (i == 3)) return false;
    words[i] = head.substr(0, space);
    head.remove_prefix(space == std::string_view::npos ? head.size() : space + 1);
  }
  return true;
}

// Checks the first line and the digest; returns what follows.
absl::StatusOr<std::string_view> Unseal(std::string_view kind, std::string_view text) {
  const std::string magic = absl::StrCat("holdfast-", View(kind));
  const size_t line = text.substr(0, 256).find('\n');
  std::string_view words[4];
  if (line == std::string_view::npos || !SplitHead(text.substr(0, line), words) ||
      words[0] != magic) {
    return absl::DataLossError(absl::StrCat("the first line is not that of a ", magic, " file"));
  }
  uint64_t version = 0, bytes = 0;
  rank::Digest128 digest;
  if (!ParseU64(words[1], &version) || !ParseDigestHex(words[2], &digest) ||
      !ParseU64(words[3], &bytes) || version == 0) {
    return absl::DataLossError(absl::StrCat("the first line of the ", magic, " file is damaged"));
  }
  if (version > kTextVersion) {
    return absl::FailedPreconditionError(absl::StrCat(magic, " version ", version,
                                                      " is newer than ", kTextVersion,
                                                      ", the newest this program reads"));
  }
  const std::string_view body = text.substr(line + 1);
  if (body.size() != bytes) {
    return absl::DataLossError(absl::StrCat("the ", magic, " file has ", body.size(),
                                            " bytes behind its first line, not ", bytes,
                                            ": it was cut or extended"));
  }
  if (Xxh128(body.data(), body.size()) != digest) {
    return absl::DataLossError(absl::StrCat("the ", magic, " file does not match its digest"));
  }
  return body;
}

absl::StatusOr<Json> ParseBody(std::string_view body) {
  Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return absl::InvalidArgumentError("the part behind the first line is not JSON");
  return json;
}

absl::StatusOr<TensorRecord> TensorFromJson(const Json& json, const std::string& where) {
  Fields fields(json, where);
  TensorRecord t;
  t.name = fields.Text("name");
  const std::string dtype = fields.Text("dtype");
  t.global_shape = fields.Numbers("shape");
  t.box.offset = fields.Numbers("offset");
  t.box.size = fields.Numbers("size");
  t.replica = fields.U32("replica");
  t.bytes = fields.U64("bytes");
  t.digest = fields.Digest("digest");
  t.pack_offset = fields.U64("pack_offset");
  HF_RETURN_IF_ERROR(fields.Finish());
  for (uint32_t i = rank::kF32; i <= rank::kF8E5M2; ++i) {
    if (dtype == rank::DTypeName(i)) t.dtype = i;
  }
  if (t.dtype == 0)
    return absl::InvalidArgumentError(
        absl::StrCat(where, ".dtype: unknown element type '", dtype, "'"));
  return t;
}

absl::StatusOr<RankManifest> ManifestFromJson(const Json& json, const std::string& where) {
  Fields fields(json, where);
  RankManifest m;
  m.id.job.value = fields.U64("job");
  m.id.attempt = fields.U64("attempt");
  m.id.step = fields.U64("step");
  m.rank = fields.U32("rank");
  m.world_size = fields.U32("world_size");
  m.samples = fields.U64("samples");
  m.pack = fields.Text("pack");
  m.pack_bytes = fields.U64("pack_bytes");
  m.pack_digest = fields.Digest("pack_digest");
  const Json* tensors = fields.Array("tensors", rank::kTensorsMax);
  HF_RETURN_IF_ERROR(fields.Finish());
  const std::string prefix = where.empty() ? "" : where + ".";
  for (size_t i = 0; i < tensors->size(); ++i) {
    HF_ASSIGN_OR_RETURN(TensorRecord t,
                        TensorFromJson((*tensors)[i], absl::StrCat(prefix, "tensors[", i, "]")));
    m.tensors.push_back(std::move(t));
  }
  if (absl::Status status = ValidateRankManifest(m); !status.ok()) {
    return where.empty() ? status : Annotate(status, where);
  }
  return m;
}

absl::StatusOr<CommitRecord> CommitFromJson(const Json& json) {
  Fields fields(json, "");
  CommitRecord record;
  record.id.job.value = fields.U64("job");
  record.id.attempt = fields.U64("attempt");
  record.id.step = fields.U64("step");
  record.world_size = fields.U32("world_size");
  record.samples = fields.U64("samples");
  record.committed_wall_ns = static_cast<int64_t>(
      fields.U64("committed_wall_ns", static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
  record.total_bytes = fields.U64("total_bytes");
  const Json* ranks = fields.Array("ranks", kWorldSizeMax);
  HF_RETURN_IF_ERROR(fields.Finish());
  for (size_t i = 0; i < ranks->size(); ++i) {
    HF_ASSIGN_OR_RETURN(RankManifest m,
                        ManifestFromJson((*ranks)[i], absl::StrCat("ranks[", i, "]")));
    record.ranks.push_back(std::move(m));
  }
  return record;
}

// One content has one encoding. That also refuses doubled keys, stray spaces and anything else the
// checks above do not see.
absl::Status RequireCanonical(std::string_view text, const std::string& encoded) {
  if (text == encoded) return absl::OkStatus();
  return absl::InvalidArgumentError("the text is not in its one canonical form");
}

// The fields of a record that follow from its manifests.
absl::StatusOr<uint64_t> TotalBytes(const std::vector<RankManifest>& ranks) {
  uint64_t total = 0;
  for (const RankManifest& m : ranks) {
    if (__builtin_add_overflow(total, m.pack_bytes, &total)) {
      return absl::InvalidArgumentError("pack_bytes: the sum over all ranks overflows");
    }
  }
  return total;
}

absl::Status CheckRecord(const CommitRecord& record) {
  HF_RETURN_IF_ERROR(ValidateTogether(record.ranks));
  const RankManifest& first = record.ranks.front();
  if (record.id != first.id) {
    return absl::InvalidArgumentError(absl::StrCat("the record is of ", ToString(record.id),
                                                   ", its ranks are of ", ToString(first.id)));
  }
  if (record.world_size != first.world_size)
    return absl::InvalidArgumentError("world_size: not that of the ranks");
  if (record.samples != first.samples)
    return absl::InvalidArgumentError("samples: not that of the ranks");
  HF_ASSIGN_OR_RETURN(const uint64_t total, TotalBytes(record.ranks));
  if (record.total_bytes != total)
    return absl::InvalidArgumentError("total_bytes: not the sum of pack_bytes");
  return absl::OkStatus();
}

std::string RankFileName(uint32_t rank, const char* suffix) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05u.%s", rank, suffix);
  return name;
}

}  // namespace

std::string EncodeRankManifest(const RankManifest& manifest) {
  return Seal(kManifestKind, ManifestJson(manifest));
}

absl::StatusOr<RankManifest> DecodeRankManifest(std::string_view text) {
  HF_ASSIGN_OR_RETURN(const std::string_view body, Unseal(kManifestKind, text));
  HF_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  HF_ASSIGN_OR_RETURN(RankManifest manifest, ManifestFromJson(json, ""));
  HF_RETURN_IF_ERROR(RequireCanonical(text, EncodeRankManifest(manifest)));
  return manifest;
}

std::string EncodeCommitRecord(const CommitRecord& record) {
  Json json;
  json["job"] = record.id.job.value;
  json["attempt"] = record.id.attempt;
  json["step"] = record.id.step;
  json["world_size"] = record.world_size;
  json["samples"] = record.samples;
  json["committed_wall_ns"] = record.committed_wall_ns;
  json["total_bytes"] = record.total_bytes;
  json["ranks"] = Json::array();
  for (const RankManifest& m : record.ranks) json["ranks"].push_back(ManifestJson(m));
  return Seal(kCommitKind, json);
}

absl::StatusOr<CommitRecord> DecodeCommitRecord(std::string_view text) {
  HF_ASSIGN_OR_RETURN(const std::string_view body, Unseal(kCommitKind, text));
  HF_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  HF_ASSIGN_OR_RETURN(CommitRecord record, CommitFromJson(json));
  HF_RETURN_IF_ERROR(CheckRecord(record));
  HF_RETURN_IF_ERROR(RequireCanonical(text, EncodeCommitRecord(record)));
  return record;
}

absl::StatusOr<CommitRecord> JoinManifests(const std::vector<RankManifest>& manifests,
                                           int64_t committed_wall_ns) {
  CommitRecord record;
  record.ranks = manifests;
  std::sort(record.ranks.begin(), record.ranks.end(),
            [](const RankManifest& a, const RankManifest& b) { return a.rank < b.rank; });
  for (const RankManifest& m : record.ranks) {
    if (absl::Status status = ValidateRankManifest(m); !status.ok()) {
      return Annotate(status, absl::StrCat("manifest of rank ", m.rank));
    }
  }
  HF_RETURN_IF_ERROR(ValidateTogether(record.ranks));
  const RankManifest& first = record.ranks.front();
  record.id = first.id;
  record.world_size = first.world_size;
  record.samples = first.samples;
  record.committed_wall_ns = committed_wall_ns;
  HF_ASSIGN_OR_RETURN(record.total_bytes, TotalBytes(record.ranks));
  return record;
}

std::string CheckpointDirName(const CheckpointId& id) {
  return absl::StrCat("jobs/", ToString(id.job), "/", id.step, ".", id.attempt);
}

std::string PackFileName(uint32_t rank) { return RankFileName(rank, "pack"); }
std::string RankManifestFileName(uint32_t rank) { return RankFileName(rank, "manifest"); }

}  // namespace holdfast::ckpt
