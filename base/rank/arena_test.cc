// SPDX-License-Identifier: Apache-2.0
#include "base/rank/arena.h"

#include <gtest/gtest.h>
#include <stddef.h>
#include <string.h>

#include <memory>
#include <string>

namespace holdfast::rank {
namespace {

struct alignas(kArenaAlign) Page {
  char bytes[kArenaAlign];
};

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() : page_(std::make_unique<Page>()) {
    memset(page_->bytes, 0, sizeof(page_->bytes));
    total_ = ArenaLayout(100'000, 10, 2, header());
  }
  ArenaHeader* header() { return reinterpret_cast<ArenaHeader*>(page_->bytes); }
  bool Valid(size_t bytes) {
    reason_ = nullptr;
    return ValidateArena(page_->bytes, bytes, &reason_);
  }

  std::unique_ptr<Page> page_;
  uint64_t total_ = 0;
  const char* reason_ = nullptr;
};

TEST_F(ArenaTest, LayoutHoldsWhatWasAskedFor) {
  ASSERT_GT(total_, 0u);
  EXPECT_GE(header()->data_capacity, 100'000u);
  EXPECT_GE(header()->table_bytes, 10 * sizeof(TensorEntry));
  EXPECT_EQ(header()->buffer_offset + 2 * header()->buffer_stride, total_);
  EXPECT_EQ(header()->buffer_stride % kArenaAlign, 0u);
  EXPECT_EQ(ArenaLayout(100'000, 10, 2, nullptr), total_);
  EXPECT_TRUE(Valid(total_)) << reason_;
}

TEST_F(ArenaTest, ImpossibleNumbersAreRefused) {
  EXPECT_EQ(ArenaLayout(1, 1, 0, nullptr), 0u);
  EXPECT_EQ(ArenaLayout(1, 1, kArenaBuffersMax + 1, nullptr), 0u);
  EXPECT_EQ(ArenaLayout(1, 0, 1, nullptr), 0u);
  EXPECT_EQ(ArenaLayout(1, kTensorsMax + 1, 1, nullptr), 0u);
  EXPECT_EQ(ArenaLayout(~0ull, 1, 1, nullptr), 0u);
  EXPECT_EQ(ArenaLayout(~0ull / 2, 1, 4, nullptr), 0u);
  EXPECT_GT(ArenaLayout(0, kTensorsMax, kArenaBuffersMax, nullptr), 0u);
}

TEST_F(ArenaTest, EveryWrongSizeOfTheMappingIsRefused) {
  for (size_t bytes : {size_t{0}, size_t{64}, kArenaAlign, size_t{total_ - kArenaAlign},
                       size_t{total_ + kArenaAlign}}) {
    EXPECT_FALSE(Valid(bytes)) << bytes;
    EXPECT_NE(reason_, nullptr);
  }
}

TEST_F(ArenaTest, FlippedHeaderBitsNeverPassWithABufferOutside) {
  const size_t checked = offsetof(ArenaHeader, job);  // magic .. data_capacity
  const std::string pristine(page_->bytes, sizeof(page_->bytes));
  int refused = 0;
  for (size_t bit = 0; bit < checked * 8; ++bit) {
    memcpy(page_->bytes, pristine.data(), pristine.size());
    page_->bytes[bit / 8] = static_cast<char>(page_->bytes[bit / 8] ^ (1 << bit % 8));
    if (!Valid(total_)) {
      ++refused;
      continue;
    }
    const ArenaHeader* h = header();
    EXPECT_GE(h->buffer_offset, sizeof(ArenaHeader)) << bit;
    EXPECT_LE(h->buffer_offset + h->buffers * h->buffer_stride, total_) << bit;
    EXPECT_LE(h->table_bytes + h->data_capacity, h->buffer_stride) << bit;
  }
  EXPECT_GT(refused, 250);
}

// The worked example of docs/formats/rank.md, and the offsets it gives.
TEST_F(ArenaTest, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(ArenaLayout(1 << 20, 10, 2, nullptr), 2117632u);
  EXPECT_EQ(sizeof(TensorEntry), 432u);
  EXPECT_EQ(offsetof(ArenaHeader, job), 56u);
  EXPECT_EQ(offsetof(ArenaHeader, rank), 64u);
  EXPECT_EQ(offsetof(ArenaHeader, buffer), 128u);
}

TEST_F(ArenaTest, TypesHaveNamesAndSizes) {
  EXPECT_EQ(DTypeBytes(kF32), 4u);
  EXPECT_EQ(DTypeBytes(kBF16), 2u);
  EXPECT_STREQ(DTypeName(kF8E5M2), "f8_e5m2");
  for (uint32_t type = kF32; type <= kF8E5M2; ++type) {
    EXPECT_NE(DTypeName(type), nullptr);
    EXPECT_GT(DTypeBytes(type), 0u);
  }
  EXPECT_EQ(DTypeBytes(0), 0u);
  EXPECT_EQ(DTypeBytes(13), 0u);
  EXPECT_EQ(DTypeName(~0u), nullptr);
}

}  // namespace
}  // namespace holdfast::rank
