// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckpt/store.h"

namespace holdfast::ckpt {
namespace {

std::string Shape(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

std::string Kind(uint32_t dtype, const std::vector<uint64_t>& shape) {
  const char* name = rank::DTypeName(dtype);
  return absl::StrCat(name == nullptr ? "unknown type" : name, Shape(shape));
}

}  // namespace

absl::Status CheckModel(const CommitRecord& record, const std::vector<TensorView>& wanted) {
  std::map<std::string, const TensorRecord*> stored;
  for (const RankManifest& manifest : record.ranks) {
    for (const TensorRecord& t : manifest.tensors) stored.emplace(t.name, &t);
  }
  const std::string where = absl::StrCat("checkpoint ", ToString(record.id));
  for (const TensorView& t : wanted) {
    const auto found = stored.find(t.name);
    if (found == stored.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is of another model: it has no tensor '", t.name, "' of ",
                       Kind(t.dtype, t.global_shape)));
    }
    const TensorRecord& have = *found->second;
    if (have.dtype != t.dtype || have.global_shape != t.global_shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " is of another model: its tensor '", t.name, "' is ",
          Kind(have.dtype, have.global_shape), ", wanted is ", Kind(t.dtype, t.global_shape)));
    }
  }
  for (const TensorView& t : wanted) stored.erase(t.name);
  if (stored.empty()) return absl::OkStatus();
  const TensorRecord& extra = *stored.begin()->second;
  return absl::InvalidArgumentError(absl::StrCat(where, " is of another model: it also has ",
                                                 stored.size(), " tensors such as '", extra.name,
                                                 "' of ", Kind(extra.dtype, extra.global_shape)));
}

}  // namespace holdfast::ckpt
