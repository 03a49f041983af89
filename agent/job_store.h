// SPDX-License-Identifier: Apache-2.0
// The rendezvous store of one attempt as this agent serves it: the pure store, its file <keeper
// directory>/store.<attempt>, and the timer that ends waits. The loop's thread only. The file need
// not survive the machine (the ranks do not either): it is not synced.
#ifndef HOLDFAST_AGENT_JOB_STORE_H_
#define HOLDFAST_AGENT_JOB_STORE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/rendezvous_store.h"
#include "agent/event_loop.h"
#include "base/unique_fd.h"

namespace holdfast::agent {

class JobStore {
 public:
  static std::string FileName(const std::string& keeper_dir, uint64_t attempt);
  // Opens or creates the file and applies what is in it.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(EventLoop* loop,
                                                        const std::string& keeper_dir,
                                                        uint64_t attempt);
  ~JobStore();  // leaves the file: an agent that ends is not an attempt that ends
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  uint64_t Handle(uint64_t client, std::string_view packet, RendezvousStore::Reply reply);
  void Abandon(uint64_t wait) { store_.Abandon(wait); }
  // The attempt is over: answers everybody who waits and removes the file.
  void Close();
  uint64_t attempt() const { return store_.attempt(); }
  size_t keys() const { return store_.keys(); }

 private:
  class FileLog final : public StoreLog {
   public:
    FileLog(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
    absl::Status Append(std::string_view record) override;
    absl::Status Recover(RendezvousStore* store);
    const std::string& path() const { return path_; }

   private:
    UniqueFd fd_;
    std::string path_;
    uint64_t bytes_ = 0;
  };
  JobStore(EventLoop* loop, std::unique_ptr<FileLog> log, uint64_t attempt);
  void ArmTimer();

  EventLoop* const loop_;
  std::unique_ptr<FileLog> log_;
  RendezvousStore store_;
  uint64_t timer_ = 0;
  int64_t timer_at_ns_ = 0;
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_JOB_STORE_H_
