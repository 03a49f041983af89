// SPDX-License-Identifier: Apache-2.0
// The seam over plain POSIX calls.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast {
namespace {

absl::Status Failed(const char* operation, const std::string& path) {
  const int error = errno;
  return ErrnoStatus(error, absl::StrCat(operation, " ", path));
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status Append(const void* data, size_t bytes) override {
    return Transfer(data, bytes, [this](const char* at, size_t left, uint64_t) {
      return ::write(fd_.get(), at, left);
    });
  }

  absl::Status WriteAt(uint64_t offset, const void* data, size_t bytes) override {
    return Transfer(data, bytes, [this, offset](const char* at, size_t left, uint64_t done) {
      return ::pwrite(fd_.get(), at, left, static_cast<off_t>(offset + done));
    });
  }

  absl::Status Preallocate(uint64_t bytes) override {
    HF_RETURN_IF_ERROR(poison_);
    if (bytes == 0) return absl::OkStatus();
    int result;
    do {
      result = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
      return absl::OkStatus();
    return Failed("preallocate", path_);
  }

  absl::Status Sync() override {
    HF_RETURN_IF_ERROR(poison_);
    int result;
    do {
      result = ::fdatasync(fd_.get());
    } while (result != 0 && errno == EINTR);
    if (result != 0) poison_ = Failed("sync", path_);
    return poison_;
  }

  absl::Status Close() override {
    HF_RETURN_IF_ERROR(poison_);
    if (!fd_.valid()) return absl::OkStatus();
    const int result = ::close(fd_.Release());
    if (result != 0 && errno != EINTR) return Failed("close", path_);
    return absl::OkStatus();
  }

 private:
  template <typename Call>
  absl::Status Transfer(const void* data, size_t bytes, Call call) {
    HF_RETURN_IF_ERROR(poison_);
    const char* at = static_cast<const char*>(data);
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = call(at + done, bytes - done, done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        poison_ = Failed("write", path_);
        return poison_;
      }
      if (n == 0) {
        poison_ =
            absl::InternalError(absl::StrCat("write ", path_, ": the kernel accepted no byte"));
        return poison_;
      }
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  UniqueFd fd_;
  const std::string path_;
  absl::Status poison_;  // the first failed write or sync
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, void* out, size_t bytes) const override {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t n = ::pread(fd_.get(), static_cast<char*>(out) + done, bytes - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("read", path_);
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  absl::StatusOr<uint64_t> Size() const override {
    struct stat info;
    if (::fstat(fd_.get(), &info) != 0) return Failed("stat", path_);
    return static_cast<uint64_t>(info.st_size);
  }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

int OpenRetrying(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

absl::StatusOr<std::unique_ptr<WritableFile>> OpenWritable(const std::string& path, int flags,
                                                           const char* operation) {
  UniqueFd fd(OpenRetrying(path, flags));
  if (!fd.valid()) return Failed(operation, path);
  return std::unique_ptr<WritableFile>(new PosixWritableFile(std::move(fd), path));
}

class PosixFileSystemImpl final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    return OpenWritable(path, O_WRONLY | O_CREAT | O_EXCL, "create");
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return OpenWritable(path, O_WRONLY | O_CREAT | O_APPEND, "open for append");
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    UniqueFd fd(OpenRetrying(path, O_RDONLY));
    if (!fd.valid()) return Failed("open", path);
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return Failed("stat", path);
    if (S_ISDIR(info.st_mode))
      return absl::InvalidArgumentError(absl::StrCat("open ", path, ": is a directory"));
    return std::unique_ptr<ReadableFile>(new PosixReadableFile(std::move(fd), path));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return Failed("rename", absl::StrCat(from, " to ", to));
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path);
  }

  absl::Status MakeDirs(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) return absl::OkStatus();
      errno = ENOTDIR;
      return Failed("make directory", path);
    }
    if (errno != ENOENT) return Failed("make directory", path);
    const size_t slash = path.find_last_of('/');
    const std::string parent = slash == std::string::npos ? "."
                               : slash == 0               ? "/"
                                                          : path.substr(0, slash);
    if (slash != std::string::npos && slash + 1 == path.size()) return MakeDirs(parent);  // "a/b/"
    HF_RETURN_IF_ERROR(MakeDirs(parent));
    if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return Failed("make directory", path);
    return SyncDir(parent);
  }

  absl::Status RemoveDir(const std::string& path) override {
    return ::rmdir(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove directory", path);
  }

  absl::Status SyncDir(const std::string& path) override {
    const UniqueFd fd(OpenRetrying(path, O_RDONLY | O_DIRECTORY));
    if (!fd.valid()) return Failed("open directory", path);
    int result;
    do {
      result = ::fsync(fd.get());
    } while (result != 0 && errno == EINTR);
    // EINVAL: this file system has no fsync for directories (some network ones); a rename there is
    // durable by itself or never.
    if (result == 0 || errno == EINVAL) return absl::OkStatus();
    return Failed("sync directory", path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return Failed("list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return ErrnoStatus(error, absl::StrCat("list ", path));
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<bool> Exists(const std::string& path) override {
    struct stat info;
    if (::lstat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return Failed("stat", path);
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    int result;
    do {
      result = ::statvfs(path.c_str(), &info);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return Failed("statvfs", path);
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
};

}  // namespace

FileSystem* PosixFileSystem() {
  static PosixFileSystemImpl* const fs =
      new PosixFileSystemImpl;  // never destroyed: threads may still use it at exit
  return fs;
}

}  // namespace holdfast
