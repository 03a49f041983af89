// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace holdfast::keeper {
namespace {

bool DiskFull(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace

int LogFile::OpenSegment(const std::string& path) {
  const int fd =
      open(path.c_str(),
           O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
  if (fd < 0) {
    last_error_ = errno;
    return -1;
  }
  if (geteuid() == 0 && uid_ != 0 && fchown(fd, uid_, gid_) != 0)
    last_error_ = errno;  // readable by root alone, then
  return fd;
}

int LogFile::Open(const std::string& base, uint64_t limit_bytes, uid_t uid, gid_t gid) {
  Close();
  base_ = base;
  head_limit_ = std::max(kLogHeadBytesMin, limit_bytes / 2);
  tail_limit_ = std::max(kLogTailBytesMin, limit_bytes / 4);
  uid_ = uid;
  gid_ = gid;
  in_tail_ = false;
  segment_bytes_ = total_ = dropped_ = 0;
  fd_ = OpenSegment(base_);
  if (fd_ < 0 && !DiskFull(last_error_)) return last_error_;
  return 0;
}

size_t LogFile::WriteSome(const char* data, size_t bytes) {
  size_t done = 0;
  while (fd_ >= 0 && done < bytes) {
    const ssize_t wrote = write(fd_, data + done, bytes - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      last_error_ = wrote < 0 ? errno : EIO;
      break;
    }
    done += static_cast<size_t>(wrote);
  }
  segment_bytes_ += done;
  return done;
}

void LogFile::StartTail() {
  if (fd_ >= 0) close(fd_);
  const std::string tail = base_ + ".tail";
  // A failed rename leaves no older tail; the output goes on in the new one all the same.
  if (in_tail_ && rename(tail.c_str(), (tail + ".old").c_str()) != 0) last_error_ = errno;
  in_tail_ = true;
  segment_bytes_ = 0;
  fd_ = OpenSegment(tail);
  char line[96];
  const int length = snprintf(line, sizeof(line), "[holdfast: output goes on here at byte %llu]\n",
                              static_cast<unsigned long long>(total_));
  WriteSome(line, static_cast<size_t>(length));
}

void LogFile::Append(const char* data, size_t bytes) {
  while (bytes > 0) {
    const uint64_t limit = in_tail_ ? tail_limit_ : head_limit_;
    if (segment_bytes_ >= limit) {
      StartTail();
      continue;
    }
    if (fd_ < 0)
      fd_ = OpenSegment(in_tail_ ? base_ + ".tail" : base_);  // the disk may have room again
    const size_t part = static_cast<size_t>(std::min<uint64_t>(bytes, limit - segment_bytes_));
    const size_t wrote = WriteSome(data, part);
    total_ += part;
    dropped_ += part - wrote;
    data += part;
    bytes -= part;
  }
}

void LogFile::Close() {
  if (dropped_ > 0) {
    char line[160];
    const int length = snprintf(line, sizeof(line),
                                "\n[holdfast: %llu bytes of output could not be written: %s]\n",
                                static_cast<unsigned long long>(dropped_), strerror(last_error_));
    WriteSome(line, static_cast<size_t>(length));
    dropped_ = 0;
  }
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace holdfast::keeper
