// SPDX-License-Identifier: Apache-2.0
// Cuts a wanted box out of a stored one while the stored bytes stream by. Pure.
#ifndef HOLDFAST_CKPT_BOX_COPY_H_
#define HOLDFAST_CKPT_BOX_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {

class BoxCopier {
 public:
  // Boxes of one global tensor whose elements have `element_bytes`; `out` has room for `wanted`,
  // row-major.
  BoxCopier(const Box& stored, const Box& wanted, uint64_t element_bytes, void* out);

  // `data` are the bytes [begin, begin + bytes) of the stored box. Copies what lies in both;
  // returns the bytes.
  uint64_t Consume(uint64_t begin, const void* data, size_t bytes);

 private:
  // Innermost contiguous run of the stored box and where it goes.
  struct Row {
    bool wanted = false;
    uint64_t out_at = 0;  // of the row's first wanted unit
  };
  Row Locate(uint64_t row) const;

  Box stored_, wanted_;
  uint64_t unit_bytes_;  // after trailing dimensions that both boxes share whole were folded in
  char* out_;
  uint64_t row_bytes_ = 0;
  uint64_t cut_begin_ = 0,
           cut_end_ = 0;  // the wanted part of each row, in bytes from the row's start
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BOX_COPY_H_
