// SPDX-License-Identifier: Apache-2.0
#include "ckpt/format/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ckpt/format/pack.h"

namespace holdfast::ckpt {
namespace {

absl::Status BadField(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

std::string BoxText(const Box& box) {
  return absl::StrCat("[", absl::StrJoin(box.offset, ","), "]+[", absl::StrJoin(box.size, ","),
                      "]");
}

absl::Status ValidateTensor(const RankManifest& manifest, const TensorRecord& t, size_t index) {
  const std::string where = absl::StrCat("tensors[", index, "]");
  if (!IsValidTensorName(t.name))
    return BadField(where + ".name", "must be 1 to 159 printable ASCII characters");
  const std::string named = absl::StrCat(where, " '", t.name, "'");
  const uint32_t element = rank::DTypeBytes(t.dtype);
  if (element == 0)
    return BadField(named + ".dtype", absl::StrCat("unknown element type ", t.dtype));
  if (t.global_shape.size() > rank::kDimsMax) {
    return BadField(named + ".shape", absl::StrCat("more than ", rank::kDimsMax, " dimensions"));
  }
  const std::optional<uint64_t> elements = Product(t.global_shape);
  uint64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, uint64_t{element}, &bytes)) {
    return BadField(named + ".shape", "the tensor's size overflows");
  }
  if (!BoxInside(t.box, t.global_shape)) {
    return BadField(named, absl::StrCat("box ", BoxText(t.box), " leaves the tensor of shape [",
                                        absl::StrJoin(t.global_shape, ","), "]"));
  }
  if (t.bytes != *Product(t.box.size) * element) {
    return BadField(named + ".bytes", absl::StrCat(t.bytes, " does not fit box ", BoxText(t.box)));
  }
  if (t.replica != 0 || t.bytes == 0) {
    if (t.pack_offset != 0)
      return BadField(named + ".pack_offset", "must be 0 for what is not written");
    return absl::OkStatus();
  }
  if (manifest.pack.empty()) return BadField(named, "a written tensor, but the rank has no pack");
  if (t.pack_offset < kPackAlign || t.pack_offset % kPackAlign != 0) {
    return BadField(named + ".pack_offset",
                    absl::StrCat(t.pack_offset, " is not a place for data"));
  }
  if (t.pack_offset > manifest.pack_bytes || t.bytes > manifest.pack_bytes - t.pack_offset) {
    return BadField(named + ".pack_offset",
                    absl::StrCat("[", t.pack_offset, ", +", t.bytes, ") leaves the pack of ",
                                 manifest.pack_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ValidatePlaces(const RankManifest& manifest) {
  std::vector<const TensorRecord*> written;
  for (const TensorRecord& t : manifest.tensors) {
    if (t.pack_offset != 0) written.push_back(&t);
  }
  std::sort(written.begin(), written.end(), [](const TensorRecord* a, const TensorRecord* b) {
    return a->pack_offset < b->pack_offset;
  });
  for (size_t i = 1; i < written.size(); ++i) {
    if (written[i]->pack_offset < written[i - 1]->pack_offset + written[i - 1]->bytes) {
      return BadField("tensors", absl::StrCat("'", written[i - 1]->name, "' and '",
                                              written[i]->name, "' overlap in the pack"));
    }
  }
  return absl::OkStatus();
}

// One box of a tensor and the rank that holds it.
struct Held {
  uint32_t rank = 0;
  const TensorRecord* record = nullptr;
};

struct TensorBoxes {
  std::vector<Held> written, replicas;
};

// The dimension along which the boxes start at the most different places: sorted along it, few
// pairs have to be compared.
size_t BestDimension(const std::vector<Held>& boxes, size_t dims) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < dims; ++d) {
    std::set<uint64_t> starts;
    for (const Held& h : boxes) starts.insert(h.record->box.offset[d]);
    if (starts.size() > most) {
      most = starts.size();
      best = d;
    }
  }
  return best;
}

absl::Status OverlapError(const std::string& name, const Held& a, const Held& b) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", name, "': box ", BoxText(a.record->box), " of rank ", a.rank,
                   " and box ", BoxText(b.record->box), " of rank ", b.rank,
                   " overlap; both are marked as the copy to write (replica 0)"));
}

absl::Status CheckOverlap(const std::string& name, std::vector<Held> boxes) {
  boxes.erase(std::remove_if(boxes.begin(), boxes.end(),
                             [](const Held& h) { return h.record->bytes == 0; }),
              boxes.end());
  if (boxes.size() < 2) return absl::OkStatus();
  const size_t dims = boxes[0].record->global_shape.size();
  if (dims == 0) return OverlapError(name, boxes[0], boxes[1]);
  const size_t d = BestDimension(boxes, dims);
  std::sort(boxes.begin(), boxes.end(), [d](const Held& a, const Held& b) {
    return a.record->box.offset[d] < b.record->box.offset[d];
  });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = boxes[i].record->box;
    for (size_t j = i + 1;
         j < boxes.size() && boxes[j].record->box.offset[d] < a.offset[d] + a.size[d]; ++j) {
      if (BoxesOverlap(a, boxes[j].record->box)) return OverlapError(name, boxes[i], boxes[j]);
    }
  }
  return absl::OkStatus();
}

// Boxes that do not overlap and lie inside the tensor cover it if and only if their volumes add up
// to its volume.
absl::Status CheckCoverage(const std::string& name, const TensorRecord& first,
                           const std::vector<Held>& written) {
  const uint64_t want = *Product(first.global_shape) * rank::DTypeBytes(first.dtype);
  uint64_t have = 0;
  for (const Held& h : written) have += h.record->bytes;
  if (have == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' of ", want,
                                                 " bytes is not covered: the ranks write ", have,
                                                 " bytes of it (replica 0)"));
}

absl::Status CheckReplicas(const std::string& name, const TensorBoxes& boxes) {
  std::map<std::pair<std::vector<uint64_t>, std::vector<uint64_t>>, const Held*> written;
  for (const Held& h : boxes.written) written[{h.record->box.offset, h.record->box.size}] = &h;
  for (const Held& h : boxes.replicas) {
    const auto found = written.find({h.record->box.offset, h.record->box.size});
    if (found == written.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", name, "': rank ", h.rank, " declares replica ", h.record->replica, " of box ",
          BoxText(h.record->box), ", which no rank writes"));
    }
    if (found->second->record->digest == h.record->digest) continue;
    return absl::DataLossError(absl::StrCat("silent corruption: tensor '", name, "' box ",
                                            BoxText(h.record->box), " differs between rank ",
                                            found->second->rank, " (written) and rank ", h.rank,
                                            " (replica ", h.record->replica, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensorTogether(const std::string& name, const TensorBoxes& boxes) {
  const Held& first = boxes.written.empty() ? boxes.replicas.front() : boxes.written.front();
  for (const std::vector<Held>* list : {&boxes.written, &boxes.replicas}) {
    for (const Held& h : *list) {
      if (h.record->global_shape == first.record->global_shape &&
          h.record->dtype == first.record->dtype)
        continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", name, "' has shape [", absl::StrJoin(first.record->global_shape, ","), "] ",
          rank::DTypeName(first.record->dtype), " on rank ", first.rank, " and [",
          absl::StrJoin(h.record->global_shape, ","), "] ", rank::DTypeName(h.record->dtype),
          " on rank ", h.rank));
    }
  }
  HF_RETURN_IF_ERROR(CheckOverlap(name, boxes.written));
  HF_RETURN_IF_ERROR(CheckCoverage(name, *first.record, boxes.written));
  return CheckReplicas(name, boxes);
}

absl::Status CheckSameCheckpoint(const std::vector<RankManifest>& ranks) {
  const RankManifest& first = ranks.front();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankManifest& m = ranks[i];
    if (m.id != first.id) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", m.rank, " is of ", ToString(m.id),
                                                     ", rank ", first.rank, " of ",
                                                     ToString(first.id)));
    }
    if (m.world_size != first.world_size || m.samples != first.samples) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks ", first.rank, " and ", m.rank, " disagree: world size ", first.world_size,
          " and ", m.world_size, ", samples ", first.samples, " and ", m.samples));
    }
    if (i > 0 && m.rank == ranks[i - 1].rank) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", m.rank, " is there twice"));
    }
    if (m.rank != i)
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", i, " of ", m.world_size, " is missing"));
  }
  if (ranks.size() == first.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", ranks.size(), " of ", first.world_size, " is missing"));
}

}  // namespace

bool IsValidTensorName(std::string_view name) {
  if (name.empty() || name.size() >= rank::kTensorNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

std::optional<uint64_t> Product(const std::vector<uint64_t>& dims) {
  uint64_t product = 1;
  for (const uint64_t d : dims) {
    if (__builtin_mul_overflow(product, d, &product)) return std::nullopt;
  }
  return product;
}

bool BoxInside(const Box& box, const std::vector<uint64_t>& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] > shape[d] || box.size[d] > shape[d] - box.offset[d]) return false;
  }
  return true;
}

bool BoxesOverlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.size[d] || b.offset[d] >= a.offset[d] + a.size[d])
      return false;
  }
  return true;
}

absl::Status ValidateRankManifest(const RankManifest& m) {
  if (m.id.job.value == 0) return BadField("job", "must be at least 1");
  if (m.id.attempt == 0) return BadField("attempt", "must be at least 1");
  if (m.world_size == 0 || m.world_size > kWorldSizeMax) {
    return BadField("world_size", absl::StrCat(m.world_size, " is outside 1..", kWorldSizeMax));
  }
  if (m.rank >= m.world_size)
    return BadField("rank", absl::StrCat(m.rank, " is not below world_size ", m.world_size));
  if (!m.pack.empty() && m.pack != PackFileName(m.rank)) {
    return BadField("pack", absl::StrCat("must be '", PackFileName(m.rank), "' or empty"));
  }
  const bool sized = m.pack_bytes >= 2 * kPackAlign && m.pack_bytes % kPackAlign == 0;
  if (m.pack.empty() ? m.pack_bytes != 0 : !sized) {
    return BadField("pack_bytes", absl::StrCat(m.pack_bytes, " is not the size of a pack"));
  }
  if (m.pack.empty() && m.pack_digest != rank::Digest128{})
    return BadField("pack_digest", "must be zero without a pack");
  if (m.tensors.size() > rank::kTensorsMax) {
    return BadField("tensors", absl::StrCat(m.tensors.size(), " are more than the limit of ",
                                            rank::kTensorsMax));
  }
  for (size_t i = 0; i < m.tensors.size(); ++i)
    HF_RETURN_IF_ERROR(ValidateTensor(m, m.tensors[i], i));
  return ValidatePlaces(m);
}

absl::Status ValidateTogether(const std::vector<RankManifest>& ranks) {
  if (ranks.empty()) return absl::InvalidArgumentError("no rank has a manifest");
  HF_RETURN_IF_ERROR(CheckSameCheckpoint(ranks));
  std::map<std::string, TensorBoxes> tensors;
  for (const RankManifest& m : ranks) {
    for (const TensorRecord& t : m.tensors) {
      TensorBoxes& boxes = tensors[t.name];
      (t.replica == 0 ? boxes.written : boxes.replicas).push_back({m.rank, &t});
    }
  }
  for (const auto& [name, boxes] : tensors) HF_RETURN_IF_ERROR(CheckTensorTogether(name, boxes));
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
