// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/arena_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/keeper/procs.h"

namespace holdfast::keeper {
namespace {

using rank::ArenaHeader;
using rank::BufferHeader;

struct Layout {
  uint64_t total_bytes = 0, table_bytes = 0, data_capacity = 0;
};

Layout LayoutOf(const ArenaRequest& request) {
  ArenaHeader scratch = {};
  Layout layout;
  layout.total_bytes =
      rank::ArenaLayout(request.data_bytes, request.tensors, request.buffers, &scratch);
  if (layout.total_bytes == 0) return layout;
  layout.table_bytes = scratch.table_bytes;
  layout.data_capacity = scratch.data_capacity;
  return layout;
}

// What the machine could still give, from /proc/meminfo; the largest number when that cannot be
// read.
uint64_t AvailableBytes() {
  const std::string text = ReadSmallFile("/proc/meminfo", 8192);
  const size_t at = text.find("MemAvailable:");
  if (at == std::string::npos) return ~0ull;
  return strtoull(text.c_str() + at + strlen("MemAvailable:"), nullptr, 10) * 1024;
}

bool HoldsSnapshot(const BufferHeader& buffer) {
  const uint32_t state = buffer.state.load(std::memory_order_acquire);
  return state == rank::kBufferSealed || state == rank::kBufferWriting;
}

}  // namespace

bool ArenaMemory::Fits(const ArenaRequest& request, uint32_t world_size) const {
  const Layout layout = LayoutOf(request);
  return exists() && layout.total_bytes == total_ && layout.table_bytes == table_bytes_ &&
         layout.data_capacity == data_capacity_ && request.buffers == buffers_ &&
         world_size == world_size_;
}

int ArenaMemory::Make(const ArenaRequest& request, uint64_t job, uint32_t rank, uint32_t world_size,
                      std::string* text) {
  Drop();
  const Layout layout = LayoutOf(request);
  if (layout.total_bytes == 0) {
    *text = "arena: " + std::to_string(request.data_bytes) + " bytes, " +
            std::to_string(request.buffers) + " buffers, " + std::to_string(request.tensors) +
            " tensors: not possible (1 to 4 buffers, 1 to 65536 tensors)";
    return EINVAL;
  }
  if (const uint64_t available = AvailableBytes(); layout.total_bytes > available) {
    *text = "arena: " + std::to_string(layout.total_bytes) + " bytes needed, " +
            std::to_string(available) +
            " available on this node: use fewer buffers or smaller shards";
    return ENOSPC;
  }
  const int fd = memfd_create("holdfast-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* page = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(layout.total_bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    page = mmap(nullptr, rank::kArenaAlign, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (page == MAP_FAILED) {
    const int error = errno;
    *text = "arena: memfd of " + std::to_string(layout.total_bytes) + " bytes: " + strerror(error);
    if (fd >= 0) close(fd);
    return error;
  }
  fd_ = fd;
  header_ = static_cast<ArenaHeader*>(page);
  total_ = layout.total_bytes;
  allocated_ = 0;
  table_bytes_ = layout.table_bytes;
  data_capacity_ = layout.data_capacity;
  buffers_ = request.buffers;
  world_size_ = world_size;
  // The header's page first: a failure here is an errno, where a store into the mapping would be
  // SIGBUS.
  if (const int error = AllocateChunk(); error != 0) {
    *text = "arena: " + std::to_string(layout.total_bytes) + " bytes: " + strerror(error);
    return error;
  }
  rank::ArenaLayout(request.data_bytes, request.tensors, request.buffers, header_);
  header_->job = job;
  header_->rank = rank;
  header_->world_size = world_size;
  return 0;
}

int ArenaMemory::AllocateChunk() {
  const uint64_t bytes = std::min(kArenaChunkBytes, total_ - allocated_);
  int result;
  do {
    result = fallocate(fd_, 0, static_cast<off_t>(allocated_), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    Drop();
    return error;
  }
  allocated_ += bytes;
  return 0;
}

void ArenaMemory::Drop() {
  if (header_ != nullptr) munmap(header_, rank::kArenaAlign);
  if (fd_ >= 0) close(fd_);
  header_ = nullptr;
  fd_ = -1;
  total_ = allocated_ = 0;
}

void ArenaMemory::FreeHalfFilled() {
  for (uint32_t i = 0; header_ != nullptr && i < buffers_; ++i) {
    uint32_t filling = rank::kBufferFilling;
    header_->buffer[i].state.compare_exchange_strong(filling, rank::kBufferFree);
  }
}

int ArenaMemory::Find(uint64_t attempt, uint64_t step) const {
  for (uint32_t i = 0; header_ != nullptr && i < buffers_; ++i) {
    const BufferHeader& buffer = header_->buffer[i];
    if (HoldsSnapshot(buffer) && buffer.attempt == attempt && buffer.step == step)
      return static_cast<int>(i);
  }
  return -1;
}

bool ArenaMemory::Newest(uint64_t* attempt, uint64_t* step) const {
  bool found = false;
  for (uint32_t i = 0; header_ != nullptr && i < buffers_; ++i) {
    const BufferHeader& buffer = header_->buffer[i];
    if (!HoldsSnapshot(buffer)) continue;
    const std::pair<uint64_t, uint64_t> here(buffer.attempt, buffer.step);
    if (found && here <= std::pair(*attempt, *step)) continue;
    *attempt = here.first;
    *step = here.second;
    found = true;
  }
  return found;
}

}  // namespace holdfast::keeper
