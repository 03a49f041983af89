// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box_copy.h"

#include <algorithm>
#include <cstring>

namespace holdfast::ckpt {

BoxCopier::BoxCopier(const Box& stored, const Box& wanted, uint64_t element_bytes, void* out)
    : stored_(stored), wanted_(wanted), unit_bytes_(element_bytes), out_(static_cast<char*>(out)) {
  while (!stored_.size.empty() && stored_.size.back() == wanted_.size.back() &&
         stored_.offset.back() == wanted_.offset.back()) {
    unit_bytes_ *= stored_.size.back();
    for (std::vector<uint64_t>* list :
         {&stored_.size, &stored_.offset, &wanted_.size, &wanted_.offset})
      list->pop_back();
  }
  if (stored_.size.empty()) {  // the same box (or a scalar): one row of one unit
    stored_ = wanted_ = Box{{0}, {1}};
  }
  const uint64_t begin = std::max(stored_.offset.back(), wanted_.offset.back());
  const uint64_t end = std::min(stored_.offset.back() + stored_.size.back(),
                                wanted_.offset.back() + wanted_.size.back());
  row_bytes_ = stored_.size.back() * unit_bytes_;
  if (begin < end) {
    cut_begin_ = (begin - stored_.offset.back()) * unit_bytes_;
    cut_end_ = (end - stored_.offset.back()) * unit_bytes_;
  }
}

BoxCopier::Row BoxCopier::Locate(uint64_t row) const {
  const size_t last = stored_.size.size() - 1;
  uint64_t place = 0, stride = wanted_.size[last];  // in units
  const uint64_t first = std::max(stored_.offset[last], wanted_.offset[last]);
  place = first - wanted_.offset[last];
  for (size_t d = last; d-- > 0;) {
    const uint64_t at = stored_.offset[d] + row % stored_.size[d];
    row /= stored_.size[d];
    if (at < wanted_.offset[d] || at >= wanted_.offset[d] + wanted_.size[d]) return {};
    place += (at - wanted_.offset[d]) * stride;
    stride *= wanted_.size[d];
  }
  return {true, place * unit_bytes_};
}

uint64_t BoxCopier::Consume(uint64_t begin, const void* data, size_t bytes) {
  if (bytes == 0 || cut_begin_ == cut_end_) return 0;
  const char* source = static_cast<const char*>(data);
  const uint64_t end = begin + bytes;
  uint64_t copied = 0;
  for (uint64_t row = begin / row_bytes_; row * row_bytes_ < end; ++row) {
    const uint64_t row_at = row * row_bytes_;
    const uint64_t from = std::max(begin, row_at + cut_begin_),
                   to = std::min(end, row_at + cut_end_);
    if (from >= to) continue;
    const Row place = Locate(row);
    if (!place.wanted) continue;
    std::memcpy(out_ + place.out_at + (from - row_at - cut_begin_), source + (from - begin),
                to - from);
    copied += to - from;
  }
  return copied;
}

}  // namespace holdfast::ckpt
