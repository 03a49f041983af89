// SPDX-License-Identifier: Apache-2.0
#include "cli/up/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/step.h"
#include "cli/exit_code.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kOwnLatenessMs =
    200;  // a loop later than this was not running; its silence is not the daemons'
constexpr int64_t kHoldLookMs = 50;  // how soon the end of a hold is seen
constexpr int64_t kSleepMsMax = 1000;
constexpr int64_t kLogCheckMs = 10'000;
constexpr int64_t kCancelMsMax =
    60'000;  // the canceller has deadlines of its own; this ends a stuck one
constexpr size_t kFailureLogLines = 5;
constexpr size_t kNotificationBytesMax = 4096;
constexpr char kWatchdogUsec[] = "WATCHDOG_USEC=1000000";

// The sender's pid as the kernel tells it; 0 when it does not.
pid_t SenderOf(msghdr* message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(c), sizeof sender);
    return sender.pid;
  }
  return 0;
}

}  // namespace

std::string HowItEnded(int exit_code) {
  return exit_code < 0 ? absl::StrCat("was killed by signal ", -exit_code)
                       : absl::StrCat("exited with code ", exit_code);
}

Supervisor::Supervisor(const RunDir* run_dir, SupervisorConfig config)
    : run_dir_(run_dir), config_(std::move(config)) {
  for (const DaemonSpec& spec : config_.daemons) children_.push_back(Child{spec, ChildPolicy(), 0});
}

Supervisor::~Supervisor() {
  if (notify_.valid()) ::unlink(run_dir_->NotifySocket().c_str());
}

absl::Status Supervisor::Open() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0)
    return absl::InternalError("cannot block signals");
  signals_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  return OpenNotifySocket();
}

absl::Status Supervisor::OpenNotifySocket() {
  const std::string path = run_dir_->NotifySocket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return absl::InvalidArgumentError(absl::StrCat("path too long: ", path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  ::unlink(path.c_str());  // of an up that was killed; ours is the lock
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind ", path));
  }
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    return ErrnoStatus(errno, "SO_PASSCRED");
  notify_ = std::move(fd);
  return absl::OkStatus();
}

absl::Status Supervisor::Run() {
  HF_RETURN_IF_ERROR(Open());
  now_ns_ = clock_.MonoNs();
  wake_ns_ = now_ns_;
  while (phase_ != Phase::kEnded) {
    now_ns_ = clock_.MonoNs();
    AllowForLateness();
    wake_ns_ = now_ns_ + kSleepMsMax * kNsPerMs;
    ReadNotifications();
    ReadSignals();
    Reap();
    for (Child& child : children_) Act(&child);
    MovePhase();
    if (phase_ != Phase::kEnded) Sleep();
  }
  return failure_;
}

void Supervisor::AllowForLateness() {
  const int64_t late = now_ns_ - wake_ns_;
  if (late < kOwnLatenessMs * kNsPerMs) return;
  for (Child& child : children_) child.policy.Shift(late);
}

void Supervisor::ReadNotifications() {
  char text[kNotificationBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  while (true) {
    iovec part{text, sizeof text};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(notify_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    Child* child = FindByPid(SenderOf(&message));
    if (child == nullptr) continue;  // a keeper or a rank that inherited the variable
    const absl::string_view body(text, static_cast<size_t>(n));
    const bool was_ready = child->policy.ready();
    if (absl::StrContains(body, "READY=1")) child->policy.Ready(now_ns_);
    if (absl::StrContains(body, "WATCHDOG=1")) child->policy.Heard(now_ns_);
    if (!was_ready && child->policy.ready())
      config_.say(absl::StrCat(child->spec.name, " is ready (pid ", child->pid, ")"));
  }
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (InStep() && signal != SIGCHLD) continue;  // meant for the job: `holdfast run` sees to it
    if (signal == SIGCHLD || (signal == SIGHUP && !config_.hang_up_ends)) continue;
    const bool cancels = signal == SIGINT || signal == SIGHUP;
    if (cancels && (phase_ == Phase::kUp || phase_ == Phase::kStarting)) {
      BeginCancel();
    } else if (phase_ != Phase::kStoppingRest && phase_ != Phase::kStoppingFirst) {
      if (phase_ == Phase::kCancelling) config_.say("not waiting for the jobs any longer");
      StopDaemons();
    }
  }
}

void Supervisor::Reap() {
  for (Child& child : children_) ReapOne(&child);
  ReapCanceller();
}

void Supervisor::ReapOne(Child* child) {
  while (child->pid > 0) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child->pid), &info,
                 WEXITED | WSTOPPED | WCONTINUED | WNOHANG) != 0 ||
        info.si_pid == 0)
      return;
    if (info.si_code == CLD_STOPPED || info.si_code == CLD_TRAPPED) {
      child->policy.Stopped(now_ns_);
    } else if (info.si_code == CLD_CONTINUED) {
      child->policy.Continued(now_ns_);
    } else {
      const int code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
      child->policy.Exited(now_ns_, code);
      run_dir_->RemovePid(child->spec.name);
      child->pid = 0;
      if (phase_ == Phase::kUp || phase_ == Phase::kCancelling ||
          (phase_ == Phase::kStarting && code != 0)) {
        config_.say(absl::StrCat(child->spec.name, " ", HowItEnded(code)));
      }
    }
  }
}

void Supervisor::ReapCanceller() {
  if (canceller_ == 0) return;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(canceller_), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return;
  canceller_ = 0;
}

void Supervisor::Act(Child* child) {
  const bool first = child == &children_[0];
  // Agents need a scheduler that listens; once it was ready they bear its absence.
  if (!first && !children_[0].policy.ever_ready() && !child->policy.running()) return;
  const bool held = run_dir_->Held(child->spec.name);
  const ChildAction action = child->policy.Decide(now_ns_, held);
  wake_ns_ = std::min(wake_ns_, action.wake_ns);
  if (held && !child->policy.running())
    wake_ns_ = std::min(wake_ns_, now_ns_ + kHoldLookMs * kNsPerMs);
  Carry(child, action);
}

void Supervisor::Carry(Child* child, const ChildAction& action) {
  switch (action.kind) {
    case ChildAction::kNone:
      return;
    case ChildAction::kStart:
      Start(child);
      break;
    case ChildAction::kTerm:
      ::kill(child->pid, InStep() ? SIGQUIT : SIGTERM);
      ::kill(child->pid, SIGCONT);  // a stopped one would not hear it
      break;
    case ChildAction::kKill:
      config_.say(
          absl::StrCat(child->spec.name, " (pid ", child->pid, ") is killed: ", action.reason));
      ::kill(child->pid, SIGKILL);
      break;
    case ChildAction::kGiveUp: {
      const std::string words = run_dir_->LogTail(child->spec.name, kFailureLogLines);
      GiveUp(absl::FailedPreconditionError(absl::StrCat(child->spec.name, " ", action.reason,
                                                        words.empty() ? "" : ":\n", words)),
             child->policy.exit_code());
      break;
    }
  }
  wake_ns_ = std::min(wake_ns_, now_ns_ + kNsPerMs);  // look at what this led to
}

void Supervisor::Start(Child* child) {
  run_dir_->BoundLog(child->spec.name);
  auto log = run_dir_->OpenLog(child->spec.name);
  SpawnRequest request;
  request.argv = child->spec.argv;
  request.environment =
      EnvironmentWith({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "HOLDFAST_ENDPOINT"},
                      {absl::StrCat("NOTIFY_SOCKET=", run_dir_->NotifySocket()), kWatchdogUsec});
  if (log.ok()) request.output_fd = log->get();
  if (child->spec.gets_owner) request.inherited_fd = config_.caller_fd;
  auto pid = SpawnChild(request);
  if (!pid.ok()) {
    child->policy.StartFailed(now_ns_);
    config_.say(std::string(pid.status().message()));
    if (!child->policy.ever_ready()) GiveUp(pid.status(), ExitCodeOf(pid.status()));
    return;
  }
  const bool again = child->policy.restarts() > 0 || child->policy.ever_ready();
  child->pid = *pid;
  child->policy.Started(now_ns_);
  const absl::Status written = run_dir_->WritePid(child->spec.name, *pid);
  if (!written.ok()) config_.say(std::string(written.message()));
  if (again) config_.say(absl::StrCat(child->spec.name, " starts again (pid ", *pid, ")"));
}

void Supervisor::BeginCancel() {
  if (config_.cancel_argv.empty() || !children_[0].policy.ever_ready()) return StopDaemons();
  SpawnRequest request;
  request.argv = config_.cancel_argv;
  request.environment =
      EnvironmentWith({"NOTIFY_SOCKET", "WATCHDOG_USEC", "HOLDFAST_ENDPOINT"}, {});
  auto pid = SpawnChild(request);
  if (!pid.ok()) {
    config_.say(std::string(pid.status().message()));
    return StopDaemons();
  }
  canceller_ = *pid;
  cancel_end_ns_ = now_ns_ + kCancelMsMax * kNsPerMs;
  phase_ = Phase::kCancelling;
}

void Supervisor::StopDaemons() {
  if (canceller_ != 0) ::kill(canceller_, SIGKILL);
  for (size_t i = 1; i < children_.size(); ++i) children_[i].policy.Stop(now_ns_);
  phase_ = Phase::kStoppingRest;
  wake_ns_ = now_ns_;
}

void Supervisor::GiveUp(absl::Status why, int exit_code) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  exit_code_ = exit_code;
  StopDaemons();
}

void Supervisor::MovePhase() {
  if (phase_ == Phase::kStarting && AllReady()) {
    phase_ = Phase::kUp;
    if (config_.on_ready) config_.on_ready();
  }
  if (phase_ == Phase::kCancelling) {
    if (canceller_ != 0 && now_ns_ >= cancel_end_ns_) ::kill(canceller_, SIGKILL);
    if (canceller_ == 0) StopDaemons();
  }
  if (phase_ == Phase::kStoppingRest && NoneRuns()) {
    children_[0].policy.Stop(now_ns_);
    phase_ = Phase::kStoppingFirst;
    wake_ns_ = now_ns_;
  }
  if (phase_ == Phase::kStoppingFirst && !children_[0].policy.running() && canceller_ == 0)
    phase_ = Phase::kEnded;
  if (now_ns_ >= next_log_check_ns_) {
    for (const Child& child : children_) run_dir_->BoundLog(child.spec.name);
    next_log_check_ns_ = now_ns_ + kLogCheckMs * kNsPerMs;
  }
}

bool Supervisor::AllReady() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& c) { return c.policy.ready(); });
}

bool Supervisor::NoneRuns() const {
  return std::none_of(children_.begin() + 1, children_.end(),
                      [](const Child& c) { return c.policy.running(); });
}

void Supervisor::Sleep() {
  const int64_t left_ns = std::max<int64_t>(0, wake_ns_ - clock_.MonoNs());
  const bool watch_caller = phase_ == Phase::kStarting && config_.alive_fd >= 0;
  const bool watch_owner = phase_ == Phase::kUp || phase_ == Phase::kStarting;
  pollfd fds[] = {{signals_.get(), POLLIN, 0},
                  {notify_.get(), POLLIN, 0},
                  {watch_caller ? config_.alive_fd : -1, 0, 0},
                  {watch_owner ? config_.caller_fd : -1, 0, 0}};
  const int ready =
      ::poll(fds, std::size(fds), static_cast<int>((left_ns + kNsPerMs - 1) / kNsPerMs));
  if (ready > 0 && (fds[2].revents & (POLLERR | POLLHUP)) != 0) {
    GiveUp(absl::CancelledError("whoever started up went away before all was ready"),
           kExitInterrupted);
  }
  if (ready > 0 && (fds[3].revents & (POLLERR | POLLHUP)) != 0 && watch_owner) {
    config_.say("whoever runs this is gone: ending everything");
    BeginCancel();
  }
}

Supervisor::Child* Supervisor::FindByPid(pid_t pid) {
  for (Child& child : children_) {
    if (pid > 0 && child.pid == pid) return &child;
  }
  return nullptr;
}

}  // namespace holdfast::cli
