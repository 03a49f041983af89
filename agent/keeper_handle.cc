// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper_handle.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kConnectEveryNs = 2 * kNsPerMs;     // while a keeper comes up: it takes a few ms
constexpr int64_t kConnectSlowlyNs = 100 * kNsPerMs;  // after kComplainAfterNs
constexpr int64_t kComplainAfterNs = 5 * kNsPerSec;
constexpr int kStoppedLooksMax = 3;  // beats

}  // namespace

KeeperHandle::KeeperHandle(EventLoop* loop, KeeperCommand command, Owner* owner)
    : loop_(loop), command_(std::move(command)), owner_(owner) {}

KeeperHandle::~KeeperHandle() {
  if (timer_ != 0) loop_->Cancel(timer_);
  if (pidfd_.valid()) loop_->Unwatch(pidfd_.get());
}

bool KeeperHandle::Adopt() {
  const std::optional<pid_t> pid = FindKeeper(command_.directory);
  if (!pid.has_value()) return false;
  return Follow(*pid, false).ok();
}

absl::Status KeeperHandle::Start() {
  if (Adopt()) return absl::OkStatus();
  // What a dead keeper left would be taken for the new one's.
  for (const char* name : {"/sock", "/pid"})
    ::unlink(absl::StrCat(command_.directory, name).c_str());
  HF_ASSIGN_OR_RETURN(const pid_t pid, SpawnKeeper(command_));
  return Follow(pid, true);
}

absl::Status KeeperHandle::Follow(pid_t pid, bool child) {
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid())
    return absl::UnavailableError(absl::StrCat("keeper ", pid, " is gone already"));
  HF_RETURN_IF_ERROR(loop_->Watch(pidfd.get(), EPOLLIN, [this](uint32_t) { OnExit(); }));
  pidfd_ = std::move(pidfd);
  pid_ = pid;
  child_ = child;
  was_connected_ = complained_ = false;
  connect_since_ns_ = loop_->Now();
  timer_ = loop_->At(0, [this] { Connect(); });
  return absl::OkStatus();
}

void KeeperHandle::ScheduleConnect() {
  const int64_t now = loop_->Now();
  const bool slow = now - connect_since_ns_ > kComplainAfterNs;
  timer_ = loop_->At(now + (slow ? kConnectSlowlyNs : kConnectEveryNs), [this] { Connect(); });
}

void KeeperHandle::Connect() {
  timer_ = 0;
  closed_link_.reset();
  const std::string socket = absl::StrCat(command_.directory, "/sock");
  absl::StatusOr<std::unique_ptr<KeeperLink>> link = KeeperLink::Connect(
      loop_, socket,
      [this](const rank::Message& message, std::string_view payload, std::vector<UniqueFd> fds) {
        owner_->KeeperPacket(message, payload, std::move(fds));
      },
      [this](const std::string& why) {
        spdlog::warn("j-{}: keeper {}: {}", command_.job, pid_, why);
        closed_link_ = std::move(link_);
        connect_since_ns_ = loop_->Now();
        ScheduleConnect();
      });
  if (!link.ok() || (*link)->pid() != pid_) {
    if (!complained_ && loop_->Now() - connect_since_ns_ > kComplainAfterNs) {
      complained_ = true;
      spdlog::error("j-{}: keeper {} lives but cannot be reached: {}", command_.job, pid_,
                    link.status().ToString());
    }
    ScheduleConnect();
    return;
  }
  link_ = *std::move(link);
  was_connected_ = true;
  complained_ = false;
  owner_->KeeperConnected();
}

void KeeperHandle::ContinueIfStopped() {
  const bool stopped = pid_ != 0 && ReadProcessState(pid_) == 'T';
  stopped_looks_ = stopped ? stopped_looks_ + 1 : 0;
  if (stopped_looks_ < kStoppedLooksMax) return;
  spdlog::warn("j-{}: keeper {} was stopped by a signal: continued", command_.job, pid_);
  ::kill(pid_, SIGCONT);
  stopped_looks_ = 0;
}

void KeeperHandle::Send(const rank::Message& message, std::string_view payload,
                        const std::vector<int>& fds) {
  if (link_ != nullptr) link_->Send(message, payload, fds);
}

void KeeperHandle::OnExit() {
  loop_->Unwatch(pidfd_.get());
  if (timer_ != 0) loop_->Cancel(std::exchange(timer_, 0));
  std::string why = absl::StrCat("keeper ", pid_, " is gone");
  if (child_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      if (WIFEXITED(status))
        absl::StrAppend(&why, ": it exited with ", WEXITSTATUS(status),
                        "; see keeper.log beside it");
      if (WIFSIGNALED(status)) absl::StrAppend(&why, ": signal ", WTERMSIG(status));
    }
  }
  link_.reset();
  closed_link_.reset();
  pidfd_.Reset();
  pid_ = 0;
  owner_->KeeperGone(std::exchange(was_connected_, false), why);
}

}  // namespace holdfast::agent
