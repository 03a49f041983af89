// SPDX-License-Identifier: Apache-2.0
// The layout of a pack: what one rank wrote of one checkpoint. docs/formats/store.md.
//
// - page 0: PackHeader, zero to the end of the page
// - from page 1: the bytes of each written box, in table order, at multiples of 4096, zero between
// - table_offset: one PackRecord for each, zero to the end of the page
// The manifest holds the digest of the table, the table that of each box, the header one of itself,
// and all padding is zero, so that no byte of a pack can change unseen.
#ifndef HOLDFAST_CKPT_FORMAT_PACK_H_
#define HOLDFAST_CKPT_FORMAT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/rank/arena.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

inline constexpr uint64_t kPackMagic = 0x314b434150465548ull;  // "HUFPACK1"
inline constexpr uint32_t kPackVersion = 1;
inline constexpr uint64_t kPackAlign = 4096;

struct PackHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;  // kPackAlign
  uint64_t job;
  uint64_t attempt;
  uint64_t step;
  uint32_t rank;
  uint32_t world_size;
  uint64_t records;
  uint64_t table_offset;
  uint64_t pack_bytes;
  uint64_t reserved[4];
  uint64_t header_hash;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(PackHeader) == 112);

struct PackRecord {
  uint64_t name_hash;  // XXH3-64 of the tensor's name
  uint64_t box_hash;   // XXH3-64 of dtype, dimensions, shape, box offset and box size, each as u64
  uint64_t offset;
  uint64_t bytes;
  rank::Digest128 digest;
  uint64_t reserved;
  uint64_t record_hash;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(PackRecord) == 64);

inline constexpr uint64_t PackAlignUp(uint64_t bytes) {
  return (bytes + kPackAlign - 1) / kPackAlign * kPackAlign;
}

// Sets pack, pack_bytes and each written tensor's pack_offset, from the sizes alone. Returns the
// table's offset.
uint64_t LayOutPack(RankManifest* manifest);

// The header page and the table (padded to whole pages) of a laid out manifest whose digests are
// known.
std::string EncodePackHeader(const RankManifest& manifest, uint64_t table_offset);
std::string EncodePackTable(const RankManifest& manifest);
// Of the records alone, without the padding: RankManifest::pack_digest.
rank::Digest128 PackTableDigest(const RankManifest& manifest);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_PACK_H_
