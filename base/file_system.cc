// SPDX-License-Identifier: Apache-2.0
#include "base/file_system.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast {
namespace {

// Several nodes may write the same file of a shared directory at once, so a process id or a counter
// alone would not do.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  uint64_t random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random)) {
    random = static_cast<uint64_t>(::getpid());
  }
  return absl::StrCat(path, kTemporaryInfix, absl::Hex(random, absl::kZeroPad16), "-",
                      counter.fetch_add(1));
}

absl::Status WriteTemporary(FileSystem& fs, const std::string& path, std::string_view content) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.CreateExclusive(path));
  HF_RETURN_IF_ERROR(file->Append(content.data(), content.size()));
  HF_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

std::string JoinPath(std::string_view a, std::string_view b) {
  std::string path(a);
  if (path.empty() || path.back() != '/') path += '/';
  path += b;
  return path;
}

std::string DirName(std::string_view path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string_view::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', last);
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

absl::StatusOr<std::unique_ptr<WritableFile>> FileSystem::CreateBulk(
    const std::string& path, const std::vector<MemoryRegion>&) {
  return CreateExclusive(path);
}

absl::StatusOr<std::string> FileSystem::ReadFile(const std::string& path) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, OpenForRead(path));
  HF_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size > kSmallFileBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "read ", path, ": ", size, " bytes, more than the limit of ", kSmallFileBytesMax));
  }
  std::string content(size, '\0');
  HF_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, content.data(), content.size()));
  content.resize(got);  // it may have been cut meanwhile
  return content;
}

absl::Status FileSystem::WriteFileDurably(const std::string& path, std::string_view content) {
  if (content.size() > kSmallFileBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("write ", path, ": ", content.size(),
                                                     " bytes, more than the limit of ",
                                                     kSmallFileBytesMax));
  }
  const std::string temporary = TemporaryName(path);
  absl::Status status = WriteTemporary(*this, temporary, content);
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    IgnoreError(Remove(temporary),
                "the first error is the one to report; a leftover temporary name means nothing");
    return status;
  }
  return SyncDir(DirName(path));
}

}  // namespace holdfast
