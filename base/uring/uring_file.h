// SPDX-License-Identifier: Apache-2.0
// One bulk file on one ring. Internal to base/uring. One thread.
//
// Memory: what lies in a region and is aligned is written from where it is; everything else is
// copied into a bounce block first. No block and no region is given up before the kernel has
// completed every write on it: Drain() runs in Sync, Close and the destructor, whatever went wrong
// before.
#ifndef HOLDFAST_BASE_URING_URING_FILE_H_
#define HOLDFAST_BASE_URING_URING_FILE_H_

#include <liburing.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/unique_fd.h"
#include "base/uring/uring_file_system.h"

namespace holdfast {

class UringFile final : public WritableFile {
 public:
  // `ring` is initialised; the file takes it over. With `direct` the descriptor has O_DIRECT set.
  // `registered` says that `regions` are registered with the ring, cut into pieces of
  // kRegisterPieceBytes.
  UringFile(UniqueFd fd, std::string path, std::unique_ptr<io_uring> ring,
            std::vector<MemoryRegion> regions, bool direct, bool registered,
            const UringOptions& options);
  ~UringFile() override;

  absl::Status Append(const void* data, size_t bytes) override;
  absl::Status WriteAt(uint64_t offset, const void* data, size_t bytes) override;
  absl::Status Preallocate(uint64_t bytes) override;
  absl::Status Sync() override;
  absl::Status Close() override;

 private:
  struct Write {
    uint64_t offset = 0;
    const char* data = nullptr;
    uint32_t bytes = 0;
    int bounce = -1;  // index of the bounce block that holds the data
    int stalls = 0;   // completions in a row without progress
    bool busy = false;
  };
  struct FreeMemory {
    void operator()(char* memory) const;
  };

  absl::Status WriteBlock(uint64_t offset, const char* data, uint32_t bytes);
  absl::Status WriteUnaligned(uint64_t offset, const char* data, size_t bytes);
  bool InRegion(const char* data, size_t bytes) const;
  int RegisteredIndex(const char* data, size_t bytes) const;
  absl::StatusOr<int> FreeSlot();
  absl::StatusOr<int> FreeBounce();
  absl::Status Start(int slot);
  absl::Status ReapOne();
  void Complete(int slot, int result);
  void Drain();
  void Poison(const absl::Status& status);

  UniqueFd fd_;
  const std::string path_;
  const std::unique_ptr<io_uring> ring_;
  const std::vector<MemoryRegion> regions_;
  const bool direct_;
  const bool registered_;
  const UringCalls calls_;
  std::vector<Write> writes_;
  std::vector<std::unique_ptr<char, FreeMemory>> bounce_;
  std::vector<bool> bounce_busy_;
  unsigned in_flight_ = 0;
  bool ring_broken_ = false;  // completions cannot be read any more
  uint64_t end_ = 0;          // where Append goes on
  absl::Status poison_;
};

inline constexpr size_t kRegisterPieceBytes = 256
                                              << 20;  // the kernel takes at most 1 GiB in one piece

}  // namespace holdfast

#endif  // HOLDFAST_BASE_URING_URING_FILE_H_
