// SPDX-License-Identifier: Apache-2.0
// A FileSystem whose bulk files are written by io_uring: O_DIRECT, several writes in flight,
// straight from the caller's memory. Everything else goes to the file system below, which must be
// the POSIX one.
//
// Falls back, and says so once: registered buffers refused (memlock) -> plain writes; O_DIRECT
// refused -> through the page cache; io_uring refused (old kernel, seccomp, a limit) -> the bulk
// file of the file system below. Threads: the file system may be shared; a bulk file belongs to the
// thread that created it.
#ifndef HOLDFAST_BASE_URING_URING_FILE_SYSTEM_H_
#define HOLDFAST_BASE_URING_URING_FILE_SYSTEM_H_

#include <liburing.h>

#include <functional>
#include <memory>
#include <string>

#include "base/file_system.h"

namespace holdfast {

// The system calls that may be refused, so that tests can refuse them. Default: the real ones.
// Return 0 or -errno.
struct UringCalls {
  std::function<int(unsigned entries, io_uring* ring, io_uring_params* params)> init;
  std::function<int(io_uring* ring, const iovec* regions, unsigned count)> register_buffers;
  std::function<int(int fd)> set_direct;
  std::function<int(int fd)> sync;
  // Sees and may change the result of each write before it is judged.
  std::function<int(int result)> completion;
};

struct UringOptions {
  unsigned writes_in_flight = 16;
  bool register_memory = true;
  UringCalls calls;
  // Told once for each kind of fallback. Default: one line on stderr.
  std::function<void(const std::string& text)> note;
};

// `below` must outlive the result.
std::unique_ptr<FileSystem> NewUringFileSystem(FileSystem* below, const UringOptions& options);

}  // namespace holdfast

#endif  // HOLDFAST_BASE_URING_URING_FILE_SYSTEM_H_
