// SPDX-License-Identifier: Apache-2.0
#include "base/uring/uring_file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/uring/uring_file.h"

namespace holdfast {
namespace {

int SetDirect(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return -errno;
  return ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0 ? 0 : -errno;
}

UringOptions WithDefaults(UringOptions options) {
  UringCalls& calls = options.calls;
  if (!calls.init) {
    calls.init = [](unsigned entries, io_uring* ring, io_uring_params* params) {
      return ::io_uring_queue_init_params(entries, ring, params);
    };
  }
  if (!calls.register_buffers) calls.register_buffers = ::io_uring_register_buffers;
  if (!calls.set_direct) calls.set_direct = SetDirect;
  if (!calls.sync) calls.sync = [](int fd) { return ::fdatasync(fd) == 0 ? 0 : -errno; };
  if (!options.note) {
    options.note = [](const std::string& text) {
      std::fprintf(stderr, "holdfast: %s\n", text.c_str());
    };
  }
  options.writes_in_flight = std::clamp(options.writes_in_flight, 1u, 256u);
  return options;
}

class UringFileSystem final : public FileSystem {
 public:
  UringFileSystem(FileSystem* below, const UringOptions& options)
      : below_(below), options_(WithDefaults(options)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateBulk(
      const std::string& path, const std::vector<MemoryRegion>& regions) override;

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    return below_->CreateExclusive(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return below_->OpenForAppend(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return below_->OpenForRead(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return below_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return below_->Remove(path); }
  absl::Status MakeDirs(const std::string& path) override { return below_->MakeDirs(path); }
  absl::Status RemoveDir(const std::string& path) override { return below_->RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override { return below_->SyncDir(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return below_->List(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return below_->Exists(path); }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return below_->FreeBytes(path);
  }

 private:
  std::unique_ptr<io_uring> NewRing();
  bool Register(io_uring* ring, const std::vector<MemoryRegion>& regions);
  void NoteOnce(std::once_flag* once, const std::string& text) {
    std::call_once(*once, [&] { options_.note(text); });
  }

  FileSystem* const below_;
  const UringOptions options_;
  std::once_flag no_ring_, no_direct_, no_register_;
};

// Null when io_uring cannot be had.
std::unique_ptr<io_uring> UringFileSystem::NewRing() {
  auto ring = std::make_unique<io_uring>();
  int result = -EINVAL;
  // Kernels before 6.1 do not know these flags and say EINVAL.
  for (const unsigned flags :
       {unsigned{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN}, 0u}) {
    io_uring_params params{};
    params.flags = flags;
    result = options_.calls.init(options_.writes_in_flight, ring.get(), &params);
    if (result != -EINVAL) break;
  }
  if (result == 0) return ring;
  NoteOnce(&no_ring_, absl::StrCat("io_uring is not available (",
                                   ErrnoStatus(-result, "io_uring_setup").message(),
                                   "); checkpoints are written by plain writes, more slowly"));
  return nullptr;
}

bool UringFileSystem::Register(io_uring* ring, const std::vector<MemoryRegion>& regions) {
  std::vector<iovec> pieces;
  for (const MemoryRegion& region : regions) {
    for (size_t at = 0; at < region.bytes; at += kRegisterPieceBytes) {
      char* begin = static_cast<char*>(const_cast<void*>(region.data)) + at;
      pieces.push_back({begin, std::min(kRegisterPieceBytes, region.bytes - at)});
    }
  }
  if (!options_.register_memory || pieces.empty()) return false;
  const int result =
      options_.calls.register_buffers(ring, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (result == 0) return true;
  NoteOnce(&no_register_,
           absl::StrCat("memory cannot be registered with io_uring (",
                        ErrnoStatus(-result, "io_uring_register").message(),
                        "); raise the locked-memory limit (LimitMEMLOCK=) for faster checkpoints"));
  return false;
}

absl::StatusOr<std::unique_ptr<WritableFile>> UringFileSystem::CreateBulk(
    const std::string& path, const std::vector<MemoryRegion>& regions) {
  std::unique_ptr<io_uring> ring = NewRing();
  if (ring == nullptr) return below_->CreateBulk(path, regions);
  int fd;
  do {
    // O_DIRECT comes after: with it, an open that fails with EINVAL may leave the new file behind.
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    const int error = errno;
    ::io_uring_queue_exit(ring.get());
    return ErrnoStatus(error, absl::StrCat("create ", path));
  }
  UniqueFd file(fd);
  const int direct = options_.calls.set_direct(fd);
  if (direct != 0) {
    NoteOnce(&no_direct_,
             absl::StrCat(path, ": no O_DIRECT here (", ErrnoStatus(-direct, "fcntl").message(),
                          "); checkpoints go through the page cache"));
  }
  const bool registered = Register(ring.get(), regions);
  return std::unique_ptr<WritableFile>(new UringFile(std::move(file), path, std::move(ring),
                                                     regions, direct == 0, registered, options_));
}

}  // namespace

std::unique_ptr<FileSystem> NewUringFileSystem(FileSystem* below, const UringOptions& options) {
  return std::make_unique<UringFileSystem>(below, options);
}

}  // namespace holdfast
