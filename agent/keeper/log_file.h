// SPDX-License-Identifier: Apache-2.0
// The output of one rank in a bounded set of files. docs/formats/rank.md ("Log files") describes
// them:
//   <base>                 the first bytes, up to the head limit
//   <base>.tail.old, .tail  what follows; .tail is moved over .tail.old when it is full
// Never blocks on a full disk and never fails: what cannot be written is dropped and counted.
#ifndef HOLDFAST_AGENT_KEEPER_LOG_FILE_H_
#define HOLDFAST_AGENT_KEEPER_LOG_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace holdfast::keeper {

inline constexpr uint64_t kLogHeadBytesMin = 64 << 10;
inline constexpr uint64_t kLogTailBytesMin = 1 << 20;

class LogFile {
 public:
  LogFile() = default;
  ~LogFile() { Close(); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // `limit_bytes` bounds all files together (a limit below 64 KiB + 2 MiB counts as that much). The
  // files belong to uid:gid when this process may give them away. Returns 0 or an errno; a full
  // disk is not an error.
  int Open(const std::string& base, uint64_t limit_bytes, uid_t uid, gid_t gid);
  void Append(const char* data, size_t bytes);
  // Writes what was dropped, if anything, and closes.
  void Close();
  uint64_t dropped_bytes() const { return dropped_; }

 private:
  int OpenSegment(const std::string& path);
  void StartTail();
  size_t WriteSome(const char* data, size_t bytes);

  std::string base_;
  uint64_t head_limit_ = 0, tail_limit_ = 0;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
  int fd_ = -1;
  bool in_tail_ = false;
  uint64_t segment_bytes_ = 0;
  uint64_t total_ = 0;    // bytes of output seen
  uint64_t dropped_ = 0;  // of these, not written
  int last_error_ = 0;
};

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_LOG_FILE_H_
