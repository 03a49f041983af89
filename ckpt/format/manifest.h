// SPDX-License-Identifier: Apache-2.0
// What the store holds beside the bytes: a manifest for each rank of a checkpoint, and the commit
// record, which is the global manifest. A checkpoint exists if and only if one valid commit record
// of it exists; no directory listing and no "latest" pointer ever proves one.
// docs/formats/store.md: the layout, both encodings, a worked example.
//
// Both are text: a first line "holdfast-<kind> <version> <xxh3-128 of the rest, hex> <bytes of the
// rest>\n", then JSON. Decoding treats its input as hostile: a wrong digest, a missing or unknown
// field of a known version, a number out of range, a path that leaves its directory, boxes that
// overlap or leave their tensor are DATA_LOSS or INVALID_ARGUMENT naming the field; a newer version
// is refused with FAILED_PRECONDITION.
#ifndef HOLDFAST_CKPT_FORMAT_MANIFEST_H_
#define HOLDFAST_CKPT_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/rank/arena.h"

namespace holdfast::ckpt {

struct Box {
  std::vector<uint64_t> offset, size;
  bool operator==(const Box&) const = default;
};

// One box that one rank holds. Replica 0 has bytes in the store (pack, pack_offset); the others
// only a digest.
struct TensorRecord {
  std::string name;
  uint32_t dtype = 0;  // rank::DType
  std::vector<uint64_t> global_shape;
  Box box;
  uint32_t replica = 0;
  uint64_t bytes = 0;
  rank::Digest128 digest;
  uint64_t pack_offset = 0;  // of the first data byte in the rank's pack; replica 0 only
};

struct RankManifest {
  CheckpointId id;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t samples = 0;
  std::string pack;  // file name in the checkpoint's directory; empty when the rank wrote no bytes
  uint64_t pack_bytes = 0;
  rank::Digest128 pack_digest;  // of the pack's table of records
  std::vector<TensorRecord> tensors;
};

struct CommitRecord {
  CheckpointId id;
  uint32_t world_size = 0;
  uint64_t samples = 0;
  int64_t committed_wall_ns = 0;
  uint64_t total_bytes = 0;         // in the store
  std::vector<RankManifest> ranks;  // whole, in rank order
};

std::string EncodeRankManifest(const RankManifest& manifest);
absl::StatusOr<RankManifest> DecodeRankManifest(std::string_view text);
std::string EncodeCommitRecord(const CommitRecord& record);
absl::StatusOr<CommitRecord> DecodeCommitRecord(std::string_view text);

// Joins the manifests of all ranks (any order) into a commit record, or says why they do not make a
// checkpoint: a missing or doubled rank, different ids, steps or samples, a tensor whose shapes
// differ, boxes of replica 0 that overlap or do not cover their tensor, a replica that differs from
// the written copy (DATA_LOSS names both).
absl::StatusOr<CommitRecord> JoinManifests(const std::vector<RankManifest>& manifests,
                                           int64_t committed_wall_ns);

// "jobs/j-42/100.3" below the store's root, and the names in it.
std::string CheckpointDirName(const CheckpointId& id);
std::string PackFileName(uint32_t rank);          // "rank-00003.pack"
std::string RankManifestFileName(uint32_t rank);  // "rank-00003.manifest"
inline constexpr char kCommitFileName[] = "COMMIT";

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_MANIFEST_H_
