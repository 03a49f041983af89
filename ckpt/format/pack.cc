// SPDX-License-Identifier: Apache-2.0
#include "ckpt/format/pack.h"

#include <cstring>
#include <vector>

#include "ckpt/format/digest_text.h"

namespace holdfast::ckpt {
namespace {

bool IsWritten(const TensorRecord& t) { return t.replica == 0 && t.bytes > 0; }

uint64_t BoxHash(const TensorRecord& t) {
  std::vector<uint64_t> words = {t.dtype, t.global_shape.size()};
  for (const std::vector<uint64_t>* list : {&t.global_shape, &t.box.offset, &t.box.size}) {
    words.insert(words.end(), list->begin(), list->end());
  }
  return Xxh64(words.data(), words.size() * sizeof(uint64_t));
}

PackRecord RecordOf(const TensorRecord& t) {
  PackRecord record{};
  record.name_hash = Xxh64(t.name.data(), t.name.size());
  record.box_hash = BoxHash(t);
  record.offset = t.pack_offset;
  record.bytes = t.bytes;
  record.digest = t.digest;
  record.record_hash = Xxh64(&record, offsetof(PackRecord, record_hash));
  return record;
}

std::vector<PackRecord> Records(const RankManifest& manifest) {
  std::vector<PackRecord> records;
  for (const TensorRecord& t : manifest.tensors) {
    if (IsWritten(t)) records.push_back(RecordOf(t));
  }
  return records;
}

}  // namespace

uint64_t LayOutPack(RankManifest* manifest) {
  uint64_t cursor = kPackAlign, records = 0;
  for (TensorRecord& t : manifest->tensors) {
    t.pack_offset = IsWritten(t) ? cursor : 0;
    if (!IsWritten(t)) continue;
    cursor += PackAlignUp(t.bytes);
    ++records;
  }
  if (records == 0) {
    manifest->pack.clear();
    manifest->pack_bytes = 0;
    return 0;
  }
  manifest->pack = PackFileName(manifest->rank);
  manifest->pack_bytes = cursor + PackAlignUp(records * sizeof(PackRecord));
  return cursor;
}

std::string EncodePackHeader(const RankManifest& manifest, uint64_t table_offset) {
  PackHeader header{};
  header.magic = kPackMagic;
  header.version = kPackVersion;
  header.header_bytes = kPackAlign;
  header.job = manifest.id.job.value;
  header.attempt = manifest.id.attempt;
  header.step = manifest.id.step;
  header.rank = manifest.rank;
  header.world_size = manifest.world_size;
  header.records = Records(manifest).size();
  header.table_offset = table_offset;
  header.pack_bytes = manifest.pack_bytes;
  header.header_hash = Xxh64(&header, offsetof(PackHeader, header_hash));
  std::string page(kPackAlign, '\0');
  std::memcpy(page.data(), &header, sizeof header);
  return page;
}

std::string EncodePackTable(const RankManifest& manifest) {
  const std::vector<PackRecord> records = Records(manifest);
  std::string table(PackAlignUp(records.size() * sizeof(PackRecord)), '\0');
  if (!records.empty())
    std::memcpy(table.data(), records.data(), records.size() * sizeof(PackRecord));
  return table;
}

rank::Digest128 PackTableDigest(const RankManifest& manifest) {
  const std::vector<PackRecord> records = Records(manifest);
  return Xxh128(records.data(), records.size() * sizeof(PackRecord));
}

}  // namespace holdfast::ckpt
