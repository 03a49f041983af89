// SPDX-License-Identifier: Apache-2.0
#include "base/uring/uring_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast {
namespace {

constexpr uint64_t kAlign = 4096;
constexpr uint32_t kBlockBytes = 4 << 20;
constexpr int kStallsMax = 100;  // EAGAIN or an empty short write this often in a row is an error

bool Aligned(uint64_t value) { return value % kAlign == 0; }
bool Aligned(const void* pointer) { return Aligned(reinterpret_cast<uintptr_t>(pointer)); }

}  // namespace

void UringFile::FreeMemory::operator()(char* memory) const { std::free(memory); }

UringFile::UringFile(UniqueFd fd, std::string path, std::unique_ptr<io_uring> ring,
                     std::vector<MemoryRegion> regions, bool direct, bool registered,
                     const UringOptions& options)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      ring_(std::move(ring)),
      regions_(std::move(regions)),
      direct_(direct),
      registered_(registered),
      calls_(options.calls),
      writes_(options.writes_in_flight) {}

UringFile::~UringFile() {
  Drain();
  if (ring_broken_) {
    // The kernel may still read the blocks: better leaked than reused.
    for (auto& block : bounce_) (void)block.release();
  }
  ::io_uring_queue_exit(ring_.get());
}

void UringFile::Poison(const absl::Status& status) {
  if (poison_.ok()) poison_ = status;
}

absl::Status UringFile::Append(const void* data, size_t bytes) {
  return WriteAt(end_, data, bytes);
}

absl::Status UringFile::WriteAt(uint64_t offset, const void* data, size_t bytes) {
  HF_RETURN_IF_ERROR(poison_);
  const char* from = static_cast<const char*>(data);
  end_ = std::max(end_, offset + bytes);
  if (direct_ && !(Aligned(offset) && Aligned(bytes))) return WriteUnaligned(offset, from, bytes);
  for (size_t done = 0; done < bytes;) {
    const uint32_t block = static_cast<uint32_t>(std::min<size_t>(kBlockBytes, bytes - done));
    HF_RETURN_IF_ERROR(WriteBlock(offset + done, from + done, block));
    done += block;
  }
  return absl::OkStatus();
}

// Rare (our formats are made of pages): O_DIRECT is switched off for it, with nothing in flight.
absl::Status UringFile::WriteUnaligned(uint64_t offset, const char* data, size_t bytes) {
  Drain();
  HF_RETURN_IF_ERROR(poison_);
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) != 0) {
    Poison(ErrnoStatus(errno, absl::StrCat("write ", path_)));
    return poison_;
  }
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pwrite(fd_.get(), data + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Poison(ErrnoStatus(n < 0 ? errno : EIO, absl::StrCat("write ", path_)));
      return poison_;
    }
    done += static_cast<size_t>(n);
  }
  if (::fcntl(fd_.get(), F_SETFL, flags) != 0)
    Poison(ErrnoStatus(errno, absl::StrCat("write ", path_)));
  return poison_;
}

bool UringFile::InRegion(const char* data, size_t bytes) const {
  for (const MemoryRegion& region : regions_) {
    const char* begin = static_cast<const char*>(region.data);
    if (data >= begin && data + bytes <= begin + region.bytes) return true;
  }
  return false;
}

int UringFile::RegisteredIndex(const char* data, size_t bytes) const {
  if (!registered_) return -1;
  int index = 0;
  for (const MemoryRegion& region : regions_) {
    const char* begin = static_cast<const char*>(region.data);
    const int pieces =
        static_cast<int>((region.bytes + kRegisterPieceBytes - 1) / kRegisterPieceBytes);
    if (data >= begin && data + bytes <= begin + region.bytes) {
      const size_t at = static_cast<size_t>(data - begin);
      const bool one_piece = at / kRegisterPieceBytes == (at + bytes - 1) / kRegisterPieceBytes;
      return one_piece ? index + static_cast<int>(at / kRegisterPieceBytes) : -1;
    }
    index += pieces;
  }
  return -1;
}

absl::StatusOr<int> UringFile::FreeSlot() {
  while (in_flight_ == writes_.size()) HF_RETURN_IF_ERROR(ReapOne());
  HF_RETURN_IF_ERROR(poison_);
  const auto slot =
      std::find_if(writes_.begin(), writes_.end(), [](const Write& w) { return !w.busy; });
  return static_cast<int>(slot - writes_.begin());
}

absl::StatusOr<int> UringFile::FreeBounce() {
  for (size_t i = 0; i < bounce_.size(); ++i) {
    if (!bounce_busy_[i]) return static_cast<int>(i);
  }
  std::unique_ptr<char, FreeMemory> block(
      static_cast<char*>(std::aligned_alloc(kAlign, kBlockBytes)));
  if (block == nullptr)
    return absl::ResourceExhaustedError(
        absl::StrCat("write ", path_, ": no memory for a block of 4 MiB"));
  bounce_.push_back(std::move(block));
  bounce_busy_.push_back(false);
  return static_cast<int>(bounce_.size() - 1);
}

absl::Status UringFile::WriteBlock(uint64_t offset, const char* data, uint32_t bytes) {
  HF_ASSIGN_OR_RETURN(const int slot, FreeSlot());
  Write& write = writes_[static_cast<size_t>(slot)];
  write = Write{offset, data, bytes, -1, 0, false};
  if (!InRegion(data, bytes) || (direct_ && !Aligned(data))) {
    HF_ASSIGN_OR_RETURN(write.bounce, FreeBounce());
    char* block = bounce_[static_cast<size_t>(write.bounce)].get();
    std::memcpy(block, data, bytes);
    write.data = block;
  }
  HF_RETURN_IF_ERROR(Start(slot));
  return poison_;
}

absl::Status UringFile::Start(int slot) {
  Write& write = writes_[static_cast<size_t>(slot)];
  io_uring_sqe* sqe = ::io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) {
    Poison(absl::InternalError(absl::StrCat("write ", path_, ": the submission queue is full")));
    return poison_;
  }
  const int index = RegisteredIndex(write.data, write.bytes);
  if (index >= 0) {
    ::io_uring_prep_write_fixed(sqe, fd_.get(), write.data, write.bytes, write.offset, index);
  } else {
    ::io_uring_prep_write(sqe, fd_.get(), write.data, write.bytes, write.offset);
  }
  ::io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(slot));
  write.busy = true;
  if (write.bounce >= 0) bounce_busy_[static_cast<size_t>(write.bounce)] = true;
  ++in_flight_;
  int result;
  while ((result = ::io_uring_submit(ring_.get())) == -EINTR) {
  }
  if (result == -EAGAIN || result == -EBUSY)
    return absl::OkStatus();  // it stays queued and goes with the next submit
  if (result < 0) {
    Poison(ErrnoStatus(-result, absl::StrCat("submit write ", path_)));
    ring_broken_ = true;  // what is queued was never seen by the kernel, but nobody can say which
  }
  return poison_;
}

// Waits for one completion. Submits what a busy kernel refused before.
absl::Status UringFile::ReapOne() {
  io_uring_cqe* cqe = nullptr;
  int result;
  do {
    result = ::io_uring_submit_and_wait(ring_.get(), 1);
    if (result >= 0 || result == -EAGAIN || result == -EBUSY)
      result = ::io_uring_wait_cqe(ring_.get(), &cqe);
  } while (result == -EINTR || result == -EAGAIN);
  if (result < 0) {
    ring_broken_ = true;
    Poison(ErrnoStatus(-result, absl::StrCat("wait for writes of ", path_)));
    return poison_;
  }
  const int slot = static_cast<int>(::io_uring_cqe_get_data64(cqe));
  int written = cqe->res;
  ::io_uring_cqe_seen(ring_.get(), cqe);
  if (calls_.completion) written = calls_.completion(written);
  Complete(slot, written);
  return absl::OkStatus();
}

void UringFile::Complete(int slot, int result) {
  Write& write = writes_[static_cast<size_t>(slot)];
  write.busy = false;
  --in_flight_;
  if (write.bounce >= 0) bounce_busy_[static_cast<size_t>(write.bounce)] = false;
  const bool again = result == -EINTR || result == -EAGAIN;
  if (result < 0 && !again) {
    Poison(ErrnoStatus(-result, absl::StrCat("write ", path_)));
    return;
  }
  // The rest of a short direct write must start on a page: the last part of one is written twice.
  uint32_t done = again ? 0 : static_cast<uint32_t>(result);
  if (done >= write.bytes) return;
  if (direct_) done -= done % kAlign;
  write.stalls = done == 0 ? write.stalls + 1 : 0;
  if (write.stalls > kStallsMax) {
    Poison(absl::UnavailableError(absl::StrCat("write ", path_, ": no progress after ", kStallsMax,
                                               " tries at offset ", write.offset)));
    return;
  }
  if (!poison_.ok()) return;
  write.offset += done;
  write.data += done;
  write.bytes -= done;
  IgnoreError(Start(slot), "it poisons the file");
}

void UringFile::Drain() {
  while (in_flight_ > 0 && !ring_broken_) IgnoreError(ReapOne(), "it poisons the file");
}

absl::Status UringFile::Preallocate(uint64_t bytes) {
  HF_RETURN_IF_ERROR(poison_);
  int result;
  do {
    result = bytes == 0 ? 0 : ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
    return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("preallocate ", path_));
}

absl::Status UringFile::Sync() {
  Drain();
  HF_RETURN_IF_ERROR(poison_);
  int result;
  do {
    result = calls_.sync(fd_.get());
  } while (result == -EINTR);
  if (result != 0) Poison(ErrnoStatus(-result, absl::StrCat("sync ", path_)));
  return poison_;
}

absl::Status UringFile::Close() {
  Drain();
  HF_RETURN_IF_ERROR(poison_);
  if (!fd_.valid()) return absl::OkStatus();
  if (::close(fd_.Release()) != 0 && errno != EINTR)
    return ErrnoStatus(errno, absl::StrCat("close ", path_));
  return absl::OkStatus();
}

}  // namespace holdfast
