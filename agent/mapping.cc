// SPDX-License-Identifier: Apache-2.0
#include "agent/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr size_t kRecorderBytesMax = 16 << 20;
constexpr size_t kArenaBytesMax = size_t{1} << 42;

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> Mapping::Map(UniqueFd fd, size_t bytes_max) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "fstat a shared descriptor");
  const auto bytes = static_cast<size_t>(info.st_size);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "a shared descriptor is not a memfd sealed against shrinking");
  }
  if (bytes == 0 || bytes > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shared memfd has ", bytes, " bytes; 1 to ", bytes_max, " are allowed"));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", bytes, " shared bytes"));
  return std::unique_ptr<Mapping>(new Mapping(data, bytes));
}

Mapping::~Mapping() { ::munmap(data_, bytes_); }

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Map(UniqueFd fd) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping,
                      Mapping::Map(std::move(fd), kRecorderBytesMax));
  const char* reason = "";
  if (!rank::RecorderReader::Validate(mapping->data(), mapping->bytes(), &reason))
    return absl::InvalidArgumentError(reason);
  return std::unique_ptr<Recorder>(new Recorder(std::move(mapping)));
}

Arena::Arena(std::unique_ptr<Mapping> mapping)
    : mapping_(std::move(mapping)),
      buffers_(static_cast<const rank::ArenaHeader*>(mapping_->data())->buffers) {
  if (buffers_ > rank::kArenaBuffersMax) buffers_ = rank::kArenaBuffersMax;
}

absl::StatusOr<std::shared_ptr<Arena>> Arena::Map(UniqueFd fd) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping,
                      Mapping::Map(std::move(fd), kArenaBytesMax));
  const char* reason = "";
  if (!rank::ValidateArena(mapping->data(), mapping->bytes(), &reason))
    return absl::InvalidArgumentError(reason);
  return std::shared_ptr<Arena>(new Arena(std::move(mapping)));
}

rank::BufferHeader& Arena::Header(uint32_t buffer) const {
  return static_cast<rank::ArenaHeader*>(mapping_->data())->buffer[buffer];
}

std::vector<SealedSnapshot> Arena::Sealed() const {
  std::vector<SealedSnapshot> out;
  for (uint32_t i = 0; i < buffers_; ++i) {
    rank::BufferHeader& header = Header(i);
    const uint32_t state = header.state.load(std::memory_order_acquire);
    if (state != rank::kBufferSealed && state != rank::kBufferWriting) continue;
    SealedSnapshot snapshot{i,
                            header.attempt,
                            header.step,
                            header.layout_hash,
                            header.persist != 0,
                            header.persisted.load(std::memory_order_acquire) != 0};
    // Begun to be refilled while we looked: it is not what we read any more.
    const uint32_t after = header.state.load(std::memory_order_acquire);
    if (after == rank::kBufferSealed || after == rank::kBufferWriting) out.push_back(snapshot);
  }
  return out;
}

bool Arena::Claim(uint32_t buffer, uint64_t attempt, uint64_t step) {
  if (buffer >= buffers_) return false;
  rank::BufferHeader& header = Header(buffer);
  uint32_t expected = rank::kBufferSealed;
  if (!header.state.compare_exchange_strong(expected, rank::kBufferWriting,
                                            std::memory_order_acq_rel))
    return false;
  if (header.attempt == attempt && header.step == step && header.persist != 0 &&
      header.persisted.load() == 0)
    return true;
  header.state.store(rank::kBufferSealed, std::memory_order_release);
  return false;
}

void Arena::Release(uint32_t buffer, bool saved) {
  rank::BufferHeader& header = Header(buffer);
  if (saved) {
    header.persisted.store(1, std::memory_order_release);
  } else {
    header.persist = 0;
  }
  uint32_t expected = rank::kBufferWriting;
  header.state.compare_exchange_strong(expected, rank::kBufferSealed, std::memory_order_acq_rel);
}

void Arena::ResetStuck() {
  for (uint32_t i = 0; i < buffers_; ++i) {
    uint32_t expected = rank::kBufferWriting;
    Header(i).state.compare_exchange_strong(expected, rank::kBufferSealed,
                                            std::memory_order_acq_rel);
  }
}

void Arena::MarkPersisted(uint64_t attempt, uint64_t step) {
  for (uint32_t i = 0; i < buffers_; ++i) {
    rank::BufferHeader& header = Header(i);
    uint32_t expected = rank::kBufferSealed;
    if (!header.state.compare_exchange_strong(expected, rank::kBufferWriting,
                                              std::memory_order_acq_rel))
      continue;
    if (header.attempt == attempt && header.step == step)
      header.persisted.store(1, std::memory_order_release);
    header.state.store(rank::kBufferSealed, std::memory_order_release);
  }
}

}  // namespace holdfast::agent
