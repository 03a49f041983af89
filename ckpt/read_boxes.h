// SPDX-License-Identifier: Apache-2.0
// `holdfast-ckpt read`: bytes of a checkpoint for a program that does not link the engine, such as
// the Python package. It asks for boxes, one JSON object a line, and gets their bytes one after the
// other; what it got was verified.
#ifndef HOLDFAST_CKPT_READ_BOXES_H_
#define HOLDFAST_CKPT_READ_BOXES_H_

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/store.h"

namespace holdfast::ckpt {

inline constexpr size_t kBoxRequestLineBytesMax = 64 << 10;
inline constexpr size_t kBoxRequestsMax = rank::kTensorsMax;

struct BoxRequest {
  std::string tensor;
  Box box;
  uint64_t bytes = 0;  // of the box
};

// Lines {"tensor":"a","offset":[0,8],"size":[4,8]}, or without offset and size for a whole tensor,
// to the end of `in`. INVALID_ARGUMENT names line and field; NOT_FOUND names the tensor.
absl::StatusOr<std::vector<BoxRequest>> ParseBoxRequests(const CommitRecord& record,
                                                         std::istream& in);

// Writes each box to `out`, in order, nothing between them. A box is written when all its bytes are
// verified; the first that fails ends it.
absl::Status WriteBoxes(Store* store, const CommitRecord& record,
                        const std::vector<BoxRequest>& requests, std::ostream& out);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_READ_BOXES_H_
