// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/syscalls.h"

#include <sys/syscall.h>

#include <algorithm>
#include <iterator>

namespace holdfast::inspect {
namespace {

constexpr CallInfo kCalls[] = {
    {SYS_read, "read", CallShape::kFd},
    {SYS_write, "write", CallShape::kFd},
    {SYS_readv, "readv", CallShape::kFd},
    {SYS_writev, "writev", CallShape::kFd},
    {SYS_pread64, "pread", CallShape::kFd},
    {SYS_pwrite64, "pwrite", CallShape::kFd},
    {SYS_preadv, "preadv", CallShape::kFd},
    {SYS_pwritev, "pwritev", CallShape::kFd},
    {SYS_preadv2, "preadv2", CallShape::kFd},
    {SYS_pwritev2, "pwritev2", CallShape::kFd},
    {SYS_recvfrom, "recv", CallShape::kFd},
    {SYS_recvmsg, "recvmsg", CallShape::kFd},
    {SYS_recvmmsg, "recvmmsg", CallShape::kFd},
    {SYS_sendto, "send", CallShape::kFd},
    {SYS_sendmsg, "sendmsg", CallShape::kFd},
    {SYS_sendmmsg, "sendmmsg", CallShape::kFd},
    {SYS_accept, "accept", CallShape::kFd},
    {SYS_accept4, "accept", CallShape::kFd},
    {SYS_connect, "connect", CallShape::kFd},
    {SYS_fsync, "fsync", CallShape::kFd},
    {SYS_fdatasync, "fdatasync", CallShape::kFd},
    {SYS_sync_file_range, "sync_file_range", CallShape::kFd},
    {SYS_ftruncate, "ftruncate", CallShape::kFd},
    {SYS_fallocate, "fallocate", CallShape::kFd},
    {SYS_fstat, "fstat", CallShape::kFd},
    {SYS_getdents64, "getdents", CallShape::kFd},
    {SYS_flock, "flock", CallShape::kFd},
    {SYS_fcntl, "fcntl", CallShape::kFd},
    {SYS_ioctl, "ioctl", CallShape::kFd},
    {SYS_close, "close", CallShape::kFd},
    {SYS_lseek, "lseek", CallShape::kFd},
    {SYS_splice, "splice", CallShape::kFd},
    {SYS_copy_file_range, "copy_file_range", CallShape::kFd},
    {SYS_sendfile, "sendfile", CallShape::kFd},
    {SYS_epoll_pwait, "epoll_pwait", CallShape::kFd},
    {SYS_io_uring_enter, "io_uring_enter", CallShape::kFd},
    {SYS_openat, "open", CallShape::kAtPath},
    {SYS_newfstatat, "stat", CallShape::kAtPath},
    {SYS_statx, "stat", CallShape::kAtPath},
    {SYS_unlinkat, "unlink", CallShape::kAtPath},
    {SYS_mkdirat, "mkdir", CallShape::kAtPath},
    {SYS_renameat2, "rename", CallShape::kAtPath},
    {SYS_faccessat, "access", CallShape::kAtPath},
    {SYS_execve, "exec", CallShape::kPath},
    {SYS_chdir, "chdir", CallShape::kPath},
    {SYS_statfs, "statfs", CallShape::kPath},
    {SYS_ppoll, "poll", CallShape::kPoll},
    {SYS_pselect6, "select", CallShape::kOther},
    {SYS_futex, "futex", CallShape::kFutex},
    {SYS_wait4, "wait4", CallShape::kWaitPid},
    {SYS_waitid, "waitid", CallShape::kWaitId},
    {SYS_nanosleep, "nanosleep", CallShape::kTime},
    {SYS_clock_nanosleep, "clock_nanosleep", CallShape::kTime},
    {SYS_rt_sigsuspend, "sigsuspend", CallShape::kTime},
    {SYS_rt_sigtimedwait, "sigtimedwait", CallShape::kTime},
    {SYS_semop, "semop", CallShape::kOther},
    {SYS_msgrcv, "msgrcv", CallShape::kOther},
    {SYS_mmap, "mmap", CallShape::kOther},
    {SYS_munmap, "munmap", CallShape::kOther},
    {SYS_msync, "msync", CallShape::kOther},
    {SYS_sync, "sync", CallShape::kOther},
#ifdef SYS_futex_waitv
    {SYS_futex_waitv, "futex_waitv", CallShape::kFutex},
#endif
// Only where the machine has the old forms.
#ifdef SYS_open
    {SYS_open, "open", CallShape::kPath},
    {SYS_stat, "stat", CallShape::kPath},
    {SYS_lstat, "lstat", CallShape::kPath},
    {SYS_access, "access", CallShape::kPath},
    {SYS_unlink, "unlink", CallShape::kPath},
    {SYS_rename, "rename", CallShape::kPath},
    {SYS_mkdir, "mkdir", CallShape::kPath},
    {SYS_poll, "poll", CallShape::kPoll},
    {SYS_select, "select", CallShape::kOther},
    {SYS_epoll_wait, "epoll_wait", CallShape::kFd},
    {SYS_pause, "pause", CallShape::kTime},
#endif
};

}  // namespace

const CallInfo* FindCall(int64_t number) {
  const auto found = std::find_if(std::begin(kCalls), std::end(kCalls),
                                  [number](const CallInfo& call) { return call.number == number; });
  return found == std::end(kCalls) ? nullptr : found;
}

}  // namespace holdfast::inspect
