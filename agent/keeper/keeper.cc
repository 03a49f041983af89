// SPDX-License-Identifier: Apache-2.0
// The loop. Order within one turn: exits and stops first, then output and connections, then work in
// pieces (arena pages, sweeps, the fence), so that nothing a rank or the agent does delays the
// notice of an exit by more than one turn.
#include "agent/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "agent/keeper/procs.h"
#include "base/step.h"

namespace holdfast::keeper {
namespace {

constexpr size_t kSocketPathMax = 107;  // sun_path less its NUL
constexpr size_t kAgentBacklogBytes =
    1 << 20;  // unsent to the agent: ranks' requests wait in their sockets beyond it
constexpr size_t kOutputBytesPerTurn = 256 << 10;  // of one rank
constexpr int kPacketsPerTurn = 32;                // of one connection
constexpr int kNotesMax = 10'000;
constexpr rlim_t kOpenFilesWanted = 4096;
constexpr uint64_t kTermWaitNs = 2'000 * kNsPerMs;
// What is left of the owner's side cancels the job in order first: TERM, 10 s, KILL, with room.
constexpr uint64_t kOwnerGoneNs = 15'000 * kNsPerMs;

}  // namespace

uint64_t MonoNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Keeper::~Keeper() {
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
  if (lock_.valid()) unlink((options_.dir + "/pid").c_str());
}

void Keeper::Note(const char* format, ...) {
  if (++notes_ > kNotesMax) return;  // the log of a keeper is bounded like everything else
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  dprintf(2, "holdfast-keeper j-%llu %.3f: %s\n", static_cast<unsigned long long>(options_.job),
          static_cast<double>(MonoNs()) / 1e9, line);
}

bool Keeper::LockDirectory() {
  const std::string path = options_.dir + "/pid";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) {
    Note("%s: %s", path.c_str(), strerror(errno));
    return false;
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    Note("%s: another keeper serves this directory", path.c_str());
    return false;
  }
  const std::string text = std::to_string(getpid()) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    Note("%s: %s", path.c_str(), strerror(errno));
    return false;
  }
  lock_ = std::move(fd);
  const std::string exits = options_.dir + "/exits";
  exits_.Reset(open(exits.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!exits_.valid()) Note("%s: %s", exits.c_str(), strerror(errno));
  return exits_.valid();
}

bool Keeper::CatchSignals() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  for (int signal : {SIGPIPE, SIGXFSZ, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2})
    sigaction(signal, &ignore, nullptr);
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &defaults,
            nullptr);  // ignored, the kernel would reap for us and the exit statuses be lost
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGCHLD);
  if (InStep()) {
    IgnoreStepSignals();  // the agent ends it, by kQuit
  } else {
    sigaddset(&ours, SIGTERM);
  }
  if (sigprocmask(SIG_SETMASK, &ours, nullptr) != 0) return false;
  signals_.Reset(signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  return signals_.valid();
}

bool Keeper::Listen() {
  const std::string path = options_.dir + "/sock";
  const std::string fresh =
      options_.dir + "/.s";  // renamed into place when it listens: who finds it can connect
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathMax) {
    Note(
        "%s: state directory path too long: a socket path has at most %zu bytes; use a shorter "
        "--state",
        path.c_str(), kSocketPathMax);
    return false;
  }
  memcpy(address.sun_path, fresh.c_str(), fresh.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  unlink(fresh.c_str());
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(fresh.c_str(), 0600) != 0 || listen(fd.get(), 128) != 0 ||
      rename(fresh.c_str(), path.c_str()) != 0) {
    Note("%s: %s", path.c_str(), strerror(errno));
    unlink(fresh.c_str());
    return false;
  }
  listener_ = std::move(fd);
  socket_path_ = path;
  return true;
}

void Keeper::ProtectSelf() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  getrlimit(RLIMIT_NOFILE, &limits_.open_files);
  rlimit raised = limits_.open_files;
  raised.rlim_cur = std::max(raised.rlim_cur, std::min(raised.rlim_max, kOpenFilesWanted));
  setrlimit(RLIMIT_NOFILE, &raised);
  // Without the privilege the write fails and the keeper is killed like any other: its ranks are
  // restarted then.
  const std::string before = ReadSmallFile("/proc/self/oom_score_adj", 32);
  UniqueFd fd(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (fd.valid() && write(fd.get(), "-900", 4) == 4) limits_.oom_score_adj = before;
}

bool Keeper::Start() {
  buffer_.resize(rank::kPayloadBytesMax);
  ProtectSelf();
  return WatchOwner() && LockDirectory() && CatchSignals() && Listen();
}

Link* Keeper::FindLink(uint32_t id) {
  for (auto& link : links_) {
    if (link->id == id && !link->dead()) return link.get();
  }
  return nullptr;
}

Link* Keeper::Agent() { return agent_ == 0 ? nullptr : FindLink(agent_); }

void Keeper::TellAgent(rank::Message message, const std::string& payload,
                       std::initializer_list<int> fds) {
  if (Link* agent = Agent()) agent->Send(message, payload, fds);
}

void Keeper::Accept() {
  const size_t links_max = options_.max_ranks * 8 + 16;
  for (;;) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    ucred peer = {};
    socklen_t length = sizeof(peer);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) continue;
    if (links_.size() >= links_max) {
      // One that never said who it is makes room, so that nobody can keep the agent out.
      const auto silent =
          std::find_if(links_.begin(), links_.end(), [](auto& l) { return l->kind == Link::kNew; });
      if (silent == links_.end()) continue;
      links_.erase(silent);
    }
    links_.push_back(std::make_unique<Link>(std::move(fd), next_link_++, peer.pid, peer.uid));
    if (next_link_ == 0) next_link_ = 1;
  }
}

void Keeper::ReadLink(Link* link) {
  for (int i = 0; i < kPacketsPerTurn && !link->dead(); ++i) {
    rank::Message m;
    rank::Descriptors received;
    const int result =
        rank::ReceiveMessage(link->fd(), &m, buffer_.data(), buffer_.size(), &received);
    if (result == -EAGAIN) return;
    bool keep = false;
    if (result == 1) {
      const std::string payload(buffer_.data(), m.payload_bytes);
      if (link->kind == Link::kAgent) {
        keep = HandleAgent(link, m, payload, received);
      } else {
        keep = link->kind == Link::kNew ? HandleNew(link, m) : HandleRank(link, m, payload);
      }
    } else if (result == -EPROTO) {
      Note("process %d: not a packet of the rank interface; connection closed", link->peer_pid);
    }
    for (int fd = 0; fd < received.count; ++fd) close(received.fds[fd]);
    if (!keep) link->Kill();
    if (Paused(*link)) return;
  }
}

void Keeper::BuryLinks() {
  if (agent_ != 0 && Agent() == nullptr) AgentGone();
  std::erase_if(links_, [](const auto& link) { return link->dead(); });
}

bool Keeper::Paused(const Link& link) {
  if (link.kind != Link::kRank) return false;
  const Link* agent = Agent();
  return agent != nullptr && agent->queued_bytes() > kAgentBacklogBytes;
}

void Keeper::ReadSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM) {
      Note("SIGTERM from process %u: ending", info.ssi_pid);
      EndAllRanks();
      quit_ = true;
    }
  }
  ReapChildren();
}

void Keeper::EndAllRanks() {
  for (auto& slot : slots_) KillRank(slot.get());
  EndEverything();
}

// Waits for what was killed, so that nothing is left when this process is gone.
void Keeper::EndEverything() {
  EndStandbys();
  const uint64_t give_up = MonoNs() + kTermWaitNs;
  Sweep();
  while ((AnyAlive() || !ChildrenOf(getpid()).empty()) && MonoNs() < give_up) {
    pollfd wait = {signals_.get(), POLLIN, 0};
    poll(&wait, 1, 20);
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    }
    ReapChildren();
    Sweep();
  }
}

void Keeper::AllocateArenas() {
  for (auto& slot : slots_) {
    if (!slot->allocating) continue;
    const int error = slot->arena.ready() ? 0 : slot->arena.AllocateChunk();
    if (error == 0 && !slot->arena.ready()) continue;
    slot->allocating = false;
    AnswerArena(slot.get(), error, "arena: no memory for its pages on this node");
  }
}

bool Keeper::WatchOwner() {
  if (options_.owner_fd < 0) return true;
  owner_.Reset(options_.owner_fd);
  if (fcntl(owner_.get(), F_SETFD, FD_CLOEXEC) == 0) return true;
  Note("--owner-fd %d: %s", options_.owner_fd, strerror(errno));
  return false;
}

void Keeper::CheckOwner() {
  if (ownerless_ns_ == 0 || MonoNs() < ownerless_ns_) return;
  Note("the process that this belongs to is gone, and nobody has ended it in order: ending");
  EndAllRanks();
  quit_ = true;
}

void Keeper::CheckFence() {
  if (fence_ns_ == 0 || MonoNs() < fence_ns_) return;
  fence_ns_ = 0;
  Note("fence deadline passed: killing all ranks");
  EndStandbys();
  for (auto& slot : slots_) KillRank(slot.get());
  rank::Message fenced;
  fenced.type = rank::kFenced;
  fenced.args[0] = MonoNs();
  TellAgent(fenced);
}

int Keeper::PollTimeoutMs() const {
  uint64_t next = ~0ull;
  for (const auto& slot : slots_) {
    if (slot->allocating) return 0;
  }
  if (fence_ns_ != 0) next = std::min(next, fence_ns_);
  if (ownerless_ns_ != 0) next = std::min(next, ownerless_ns_);
  if (standby_ns_ != 0) next = std::min(next, standby_ns_);
  if (next_sweep_ns_ != 0) next = std::min(next, next_sweep_ns_);
  if (next == ~0ull) return -1;
  const uint64_t now = MonoNs();
  if (next <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((next - now + kNsPerMs - 1) / kNsPerMs, 60'000));
}

void Keeper::ServeSlots(const std::vector<pollfd>& ready, size_t* at) {
  for (auto& slot : slots_) {
    if (slot->output.valid() && ready[(*at)++].revents != 0)
      DrainOutput(slot.get(), kOutputBytesPerTurn);
    if (slot->report.valid() && ready[(*at)++].revents != 0) ReadReport(slot.get());
  }
}

void Keeper::ServeLinks(const std::vector<pollfd>& ready, size_t* at) {
  const size_t count =
      ready.size() - *at;  // a handler may have shortened the list of slots, never this one
  for (size_t i = 0; i < count; ++i) {
    Link* link = links_[i].get();
    const short events = ready[*at + i].revents;
    if (link->dead() || events == 0) continue;
    if ((events & POLLOUT) != 0) link->Flush();
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) ReadLink(link);
  }
}

void Keeper::Poll() {
  std::vector<pollfd> fds = {
      {signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}, {owner_.get(), 0, 0}};
  for (auto& slot : slots_) {
    if (slot->output.valid()) fds.push_back({slot->output.get(), POLLIN, 0});
    if (slot->report.valid()) fds.push_back({slot->report.get(), POLLIN, 0});
  }
  for (auto& link : links_) {
    const int in = Paused(*link) ? 0 : POLLIN;
    fds.push_back({link->fd(), static_cast<short>(in | (link->wants_to_write() ? POLLOUT : 0)), 0});
  }
  if (poll(fds.data(), fds.size(), PollTimeoutMs()) <= 0) return;
  if (fds[2].revents != 0) {
    ownerless_ns_ = MonoNs() + kOwnerGoneNs;
    owner_.Reset();
  }
  size_t at = 3;
  ServeSlots(fds, &at);
  // Exits after the output that came before them, in the same turn and before any message.
  if (fds[0].revents != 0) ReadSignals();
  ServeLinks(fds, &at);
  if (fds[1].revents != 0) Accept();
}

int Keeper::Run() {
  Note("serving %s", socket_path_.c_str());
  while (!quit_) {
    Poll();
    AllocateArenas();
    CheckFence();
    CheckOwner();
    StartStandbys();
    if (next_sweep_ns_ != 0 && MonoNs() >= next_sweep_ns_) Sweep();
    BuryLinks();
  }
  Note("ended");
  return 0;
}

}  // namespace holdfast::keeper
