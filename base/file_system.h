// SPDX-License-Identifier: Apache-2.0
// The seam to the operating system's files: the checkpoint engine and every durable state file go
// through it, so that tests can inject short writes, EIO, ENOSPC, a failed fsync, a crash after
// operation k, or the loss of what was not synced (base/testing/fault_file_system.h).
//
// Contract
//  - Paths are absolute or relative to the working directory; opened descriptors are CLOEXEC.
//  - Errors carry the path and the operation. ENOENT is NOT_FOUND, ENOSPC is RESOURCE_EXHAUSTED.
//  - Read and Write loop over EINTR and short transfers; a short Read at end of file returns fewer
//    bytes, not an error.
//  - A file whose Sync or Write failed is poisoned: every later Write and Sync on it fails. The
//    bytes must be written again to a new name.
//    (After a failed fsync Linux marks the pages clean: a second one succeeds and means
//    nothing.)
//  - A new or renamed name is durable only after SyncDir on its directory.
// Threads: a FileSystem may be shared; one File belongs to one thread at a time.
#ifndef HOLDFAST_BASE_FILE_SYSTEM_H_
#define HOLDFAST_BASE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes without syncing
  // Appends. The bytes may be in the kernel's cache only until Sync returns OK.
  virtual absl::Status Append(const void* data, size_t bytes) = 0;
  virtual absl::Status WriteAt(uint64_t offset, const void* data, size_t bytes) = 0;
  virtual absl::Status Preallocate(
      uint64_t bytes) = 0;           // best effort; RESOURCE_EXHAUSTED when there is no room
  virtual absl::Status Sync() = 0;   // fdatasync
  virtual absl::Status Close() = 0;  // reports errors that the destructor cannot
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Reads up to `bytes` at `offset` into `out`; returns how many.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, void* out, size_t bytes) const = 0;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
};

struct MemoryRegion {
  const void* data = nullptr;
  size_t bytes = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> CreateExclusive(
      const std::string& path) = 0;  // O_EXCL
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(
      const std::string& path) = 0;  // creates
  // A new file for large writes that may overlap (submit and reap). WriteAt may return before its
  // bytes are written: they must stay valid and unchanged until Sync, Close or the destructor, and
  // an error may surface at any later call. `regions` are the memory that most writes come from
  // (io_uring registers it). The default: CreateExclusive.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> CreateBulk(
      const std::string& path, const std::vector<MemoryRegion>& regions);
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;  // file
  virtual absl::Status MakeDirs(
      const std::string& path) = 0;  // like mkdir -p; each new level synced
  virtual absl::Status RemoveDir(const std::string& path) = 0;  // empty directory
  virtual absl::Status SyncDir(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) = 0;  // names, sorted, no . or ..
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;

  // Whole small files (at most kSmallFileBytesMax).
  absl::StatusOr<std::string> ReadFile(const std::string& path);
  // tmp name, write, sync, rename over `path`, sync of the directory: after OK the new content
  // survives a crash, after any crash the file holds either the old or the new content.
  absl::Status WriteFileDurably(const std::string& path, std::string_view content);
};

inline constexpr uint64_t kSmallFileBytesMax = 64ull << 20;

// Names that WriteFileDurably uses until it renames hold this; what a crash left under such a name
// means nothing.
inline constexpr char kTemporaryInfix[] = ".tmp-";

// The process-wide POSIX implementation. Never null; lives until the process ends.
FileSystem* PosixFileSystem();

// a + "/" + b.
std::string JoinPath(std::string_view a, std::string_view b);
// The directory that holds `path`, slashes at its end aside: "." for a bare name, "/" for what lies
// in the root and for the root.
std::string DirName(std::string_view path);

}  // namespace holdfast

#endif  // HOLDFAST_BASE_FILE_SYSTEM_H_
