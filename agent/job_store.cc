// SPDX-License-Identifier: Apache-2.0
#include "agent/job_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "base/fault_point.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr size_t kLogBytesMax = size_t{1} << 30;

}  // namespace

std::string JobStore::FileName(const std::string& keeper_dir, uint64_t attempt) {
  return absl::StrCat(keeper_dir, "/store.", attempt);
}

absl::Status JobStore::FileLog::Append(std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::pwrite(fd_.get(), record.data() + done, record.size() - done,
                               static_cast<off_t>(bytes_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      // A torn record behind bytes_ is harmless: the next one is written over it, and a reader
      // stops at it.
      return ErrnoStatus(errno, absl::StrCat("append to ", path_));
    }
    done += static_cast<size_t>(n);
  }
  bytes_ += record.size();
  HF_KILL_POINT("agent.store.append:after");
  return absl::OkStatus();
}

absl::Status JobStore::FileLog::Recover(RendezvousStore* store) {
  const std::optional<std::string> text = ReadSmallFile(path_, kLogBytesMax);
  if (!text.has_value()) return ErrnoStatus(errno, absl::StrCat("read ", path_));
  bytes_ = store->Replay(*text);
  // The record that was being written when the agent died was not answered: its rank asks again.
  if (bytes_ != text->size() && ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cut ", path_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(EventLoop* loop,
                                                         const std::string& keeper_dir,
                                                         uint64_t attempt) {
  const std::string path = FileName(keeper_dir, attempt);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  auto log = std::make_unique<FileLog>(std::move(fd), path);
  std::unique_ptr<JobStore> store(new JobStore(loop, std::move(log), attempt));
  HF_RETURN_IF_ERROR(store->log_->Recover(&store->store_));
  return store;
}

JobStore::JobStore(EventLoop* loop, std::unique_ptr<FileLog> log, uint64_t attempt)
    : loop_(loop), log_(std::move(log)), store_(attempt, log_.get()) {}

JobStore::~JobStore() {
  if (timer_ != 0) loop_->Cancel(timer_);
}

uint64_t JobStore::Handle(uint64_t client, std::string_view packet, RendezvousStore::Reply reply) {
  const uint64_t wait = store_.Handle(client, packet, loop_->Now(), std::move(reply));
  if (wait != 0) ArmTimer();
  return wait;
}

void JobStore::ArmTimer() {
  const int64_t next = store_.NextDeadlineNs();
  if (next == 0 || (timer_ != 0 && timer_at_ns_ <= next)) return;
  if (timer_ != 0) loop_->Cancel(timer_);
  timer_at_ns_ = next;
  timer_ = loop_->At(next, [this] {
    timer_ = 0;
    store_.Expire(loop_->Now());
    ArmTimer();
  });
}

void JobStore::Close() {
  store_.Close();
  ::unlink(log_->path().c_str());
}

}  // namespace holdfast::agent
