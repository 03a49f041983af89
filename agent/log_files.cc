// SPDX-License-Identifier: Apache-2.0
#include "agent/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kTailLookBackBytes = 4 << 20;
constexpr size_t kTimeMarksMax = 4096;
constexpr char kMarker[] = "[holdfast: output goes on here at byte %" SCNu64 "]";

struct Segment {
  UniqueFd fd;
  uint64_t start = 0;  // position in the stream of its first byte of output
  uint64_t skip = 0;   // bytes of the marker line
  uint64_t bytes = 0;  // of output
  uint64_t end() const { return start + bytes; }
};

bool OpenSegment(const std::string& path, bool marked, Segment* out) {
  out->fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!out->fd.valid() || ::fstat(out->fd.get(), &info) != 0) return false;
  const auto size = static_cast<uint64_t>(info.st_size);
  if (marked) {
    char line[128] = {};
    const ssize_t n = ::pread(out->fd.get(), line, sizeof line - 1, 0);
    const std::string text(line, n > 0 ? static_cast<size_t>(n) : 0);
    const size_t newline = text.find('\n');
    if (newline == std::string::npos || std::sscanf(line, kMarker, &out->start) != 1) return false;
    out->skip = newline + 1;
  }
  out->bytes = size > out->skip ? size - out->skip : 0;
  return true;
}

std::vector<Segment> OpenAll(const std::string& base) {
  std::vector<Segment> segments;
  const std::pair<const char*, bool> names[] = {{"", false}, {".tail.old", true}, {".tail", true}};
  for (const auto& [suffix, marked] : names) {
    Segment segment;
    if (OpenSegment(absl::StrCat(base, suffix), marked, &segment))
      segments.push_back(std::move(segment));
  }
  return segments;
}

LogPiece ReadFrom(const std::vector<Segment>& segments, uint64_t offset, size_t bytes_max) {
  LogPiece piece;
  piece.offset = offset;
  for (const Segment& segment : segments) {
    if (segment.end() <= offset) continue;
    const uint64_t at = std::max(offset, segment.start);
    piece.offset = at;
    piece.data.resize(std::min<uint64_t>(bytes_max, segment.end() - at));
    const ssize_t n = ::pread(segment.fd.get(), piece.data.data(), piece.data.size(),
                              static_cast<off_t>(segment.skip + at - segment.start));
    piece.data.resize(n > 0 ? static_cast<size_t>(n) : 0);
    break;
  }
  return piece;
}

absl::StatusOr<std::vector<Segment>> Open(const std::string& base) {
  std::vector<Segment> segments = OpenAll(base);
  if (segments.empty())
    return absl::NotFoundError(absl::StrCat(base, ": no such log on this node"));
  return segments;
}

uint64_t EndOf(const std::vector<Segment>& segments) {
  uint64_t end = 0;
  for (const Segment& segment : segments) end = std::max(end, segment.end());
  return end;
}

std::string ReadRange(const std::vector<Segment>& segments, uint64_t from, uint64_t to) {
  std::string text;
  while (from < to) {
    LogPiece piece = ReadFrom(segments, from, to - from);
    if (piece.data.empty()) break;
    from = piece.offset + piece.data.size();
    text += piece.data;
  }
  return text;
}

// A line of <base>.times, in the machine's byte order: it is read where it was written.
struct TimeMark {
  int64_t wall_ns = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(TimeMark) == 16);

std::string TimesPath(const std::string& base) { return absl::StrCat(base, ".times"); }

off_t MarkOffset(size_t index) { return static_cast<off_t>(index * sizeof(TimeMark)); }

// A mark cut short by a crash or a full disk is left out, and the next one takes its place.
size_t CountMarks(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<size_t>(info.st_size) / sizeof(TimeMark) : 0;
}

// `count` marks from the one numbered `first`, fewer where they cannot be read.
std::vector<TimeMark> ReadMarks(int fd, size_t first, size_t count) {
  std::vector<TimeMark> marks(count);
  const ssize_t n = ::pread(fd, marks.data(), count * sizeof(TimeMark), MarkOffset(first));
  marks.resize(n > 0 ? static_cast<size_t>(n) / sizeof(TimeMark) : 0);
  return marks;
}

// A full disk costs times, nothing else.
void WriteMarks(int fd, const std::vector<TimeMark>& marks, size_t first) {
  const ssize_t wrote =
      ::pwrite(fd, marks.data(), marks.size() * sizeof(TimeMark), MarkOffset(first));
  (void)wrote;
}

// Keeps every second mark; returns how many are left.
size_t ThinMarks(int fd, size_t count) {
  std::vector<TimeMark> marks = ReadMarks(fd, 0, count);
  for (size_t i = 0; 2 * i + 1 < marks.size(); ++i) marks[i] = marks[2 * i + 1];
  marks.resize(marks.size() / 2);
  WriteMarks(fd, marks, 0);
  return ::ftruncate(fd, MarkOffset(marks.size())) == 0 ? marks.size() : CountMarks(fd);
}

}  // namespace

std::string LogBase(const std::string& log_dir, uint32_t rank, uint64_t attempt) {
  return absl::StrCat(log_dir, "/rank", rank, ".", attempt, ".log");
}

absl::StatusOr<LogPiece> ReadLogAt(const std::string& base, uint64_t offset, size_t bytes_max) {
  HF_ASSIGN_OR_RETURN(std::vector<Segment> segments, Open(base));
  LogPiece piece = ReadFrom(segments, offset, bytes_max);
  if (piece.offset == offset) return piece;
  // A hole, or the keeper moved .tail to .tail.old between our two opens. Look again before
  // jumping.
  HF_ASSIGN_OR_RETURN(segments, Open(base));
  return ReadFrom(segments, offset, bytes_max);
}

absl::StatusOr<uint64_t> TailOffset(const std::string& base, int64_t lines) {
  HF_ASSIGN_OR_RETURN(const std::vector<Segment> segments, Open(base));
  if (lines < 0) return 0;
  const uint64_t end = EndOf(segments);
  const uint64_t from = end > kTailLookBackBytes ? end - kTailLookBackBytes : 0;
  const std::string text = ReadRange(segments, from, end);
  size_t at = text.size();
  if (at > 0 && text[at - 1] == '\n') --at;  // the end of the last line is not a line of its own
  for (int64_t n = 0; n < lines; ++n) {
    const size_t newline = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    if (newline == std::string::npos) return end - text.size();
    at = newline;
  }
  return lines == 0 ? end : end - text.size() + at + 1;
}

void MarkLogTime(const std::string& base, int64_t now_wall_ns) {
  const std::vector<Segment> segments = OpenAll(base);
  const uint64_t end = EndOf(segments);
  if (end == 0) return;
  const UniqueFd fd(
      ::open(TimesPath(base).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!fd.valid()) return;
  size_t count = CountMarks(fd.get());
  // Looked at with each beat: of what has not grown, the last mark alone is read.
  if (count > 0) {
    const std::vector<TimeMark> last = ReadMarks(fd.get(), count - 1, 1);
    if (!last.empty() && last[0].bytes >= end) return;
  }
  if (count >= kTimeMarksMax) count = ThinMarks(fd.get(), count);
  WriteMarks(fd.get(), {{now_wall_ns, end}}, count);
}

uint64_t LogOffsetAt(const std::string& base, int64_t wall_ns) {
  const UniqueFd fd(::open(TimesPath(base).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return 0;
  uint64_t bytes = 0;
  for (const TimeMark& mark : ReadMarks(fd.get(), 0, CountMarks(fd.get()))) {
    if (mark.wall_ns > wall_ns) break;  // also after a wall clock that was set back
    bytes = mark.bytes;
  }
  return bytes;
}

std::string LogTail(const std::string& base, size_t bytes_max) {
  const std::vector<Segment> segments = OpenAll(base);
  const uint64_t end = EndOf(segments);
  const uint64_t from = end > bytes_max ? end - bytes_max : 0;
  std::string text = ReadRange(segments, from, end);
  const size_t newline = text.find('\n');
  if (from > 0 && newline != std::string::npos && newline + 1 < text.size())
    text.erase(0, newline + 1);
  return text;
}

absl::Status KeepFailure(const std::string& base, const std::string& directory, uint32_t rank,
                         const std::string& note) {
  FileSystem* fs = PosixFileSystem();
  HF_ASSIGN_OR_RETURN(const bool there, fs->Exists(JoinPath(directory, "why.txt")));
  if (there) return absl::OkStatus();
  HF_RETURN_IF_ERROR(fs->MakeDirs(directory));
  const std::vector<Segment> segments = OpenAll(base);
  const uint64_t end = EndOf(segments);
  const std::string head = ReadRange(segments, 0, std::min<uint64_t>(end, kFirstFailureHeadBytes));
  const uint64_t from =
      end > static_cast<uint64_t>(kFirstFailureTailBytes) ? end - kFirstFailureTailBytes : 0;
  HF_RETURN_IF_ERROR(
      fs->WriteFileDurably(JoinPath(directory, absl::StrCat("rank", rank, ".head.log")), head));
  HF_RETURN_IF_ERROR(
      fs->WriteFileDurably(JoinPath(directory, absl::StrCat("rank", rank, ".tail.log")),
                           ReadRange(segments, from, end)));
  return fs->WriteFileDurably(JoinPath(directory, "why.txt"), note);
}

}  // namespace holdfast::agent
