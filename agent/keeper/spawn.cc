// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/rank/message.h"
#include "base/step.h"

namespace holdfast::keeper {
namespace {

constexpr char kDefaultPath[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
constexpr int kExitNotStarted = 127;

std::string_view KeyOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

void Put(std::vector<std::string>* env, const std::string& entry) {
  for (std::string& old : *env) {
    if (KeyOf(old) == KeyOf(entry)) {
      old = entry;
      return;
    }
  }
  env->push_back(entry);
}

[[noreturn]] void Fail(int report, rank::StartStage stage, int error) {
  const ChildReport what = {static_cast<int32_t>(stage), error};
  while (write(report, &what, sizeof(what)) < 0 && errno == EINTR) {
  }
  _exit(kExitNotStarted);
}

// The keeper may have died between fork and prctl: then there is nobody to fire the signal.
void DieWithKeeper(pid_t keeper) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(kExitNotStarted);
}

void ResetSignals() {
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    sigaction(signal, &defaults, nullptr);  // KILL and STOP refuse; fine
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void RestoreLimits(const InheritedLimits& limits) {
  setrlimit(RLIMIT_NOFILE, &limits.open_files);
  if (limits.oom_score_adj.empty()) return;
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, limits.oom_score_adj.data(), limits.oom_score_adj.size()) < 0) {
    // Raising one's own score is always allowed; where /proc says otherwise the rank only stays
    // better protected.
  }
  close(fd);
}

// Returns 0 or an errno. Order: groups, gid, uid; then proves that they are gone.
int BecomeUser(const rank::StartSpec& spec) {
  if (geteuid() != 0) return spec.uid == geteuid() ? 0 : EPERM;
  if (spec.uid == 0) return 0;
  const std::vector<gid_t> groups(spec.groups.begin(), spec.groups.end());
  if (setgroups(groups.size(), groups.data()) != 0) return errno;
  if (setgid(spec.gid) != 0) return errno;
  if (setuid(spec.uid) != 0) return errno;
  if (setuid(0) == 0 || getuid() != spec.uid || getgid() != spec.gid) return EPERM;
  return 0;
}

// What a child of the keeper does first, and, once its descriptors are in place, before exec.
void BeginChild(pid_t keeper) {
  setsid();
  DieWithKeeper(keeper);
  ResetSignals();
}

// Returns 0 or an errno.
int BecomeWhoItRunsAs(pid_t keeper, const rank::StartSpec& spec, const InheritedLimits& limits) {
  RestoreLimits(limits);
  if (const int error = BecomeUser(spec); error != 0) return error;
  DieWithKeeper(keeper);  // changing credentials cleared it
  return 0;
}

constexpr int kInheritedMax = 2;

struct Child {
  pid_t keeper;
  int input, output, report;
  char** argv;
  char** envp;
  int inherited[kInheritedMax] = {-1, -1};  // become 3 and 4; both or none
};

// Descriptors may stand where others are to go: all out of the way first. Returns 0 or an errno.
int Inherit(Child* child) {
  constexpr int kFirst = 3, kFree = kFirst + kInheritedMax;
  child->report = fcntl(child->report, F_DUPFD_CLOEXEC, kFree);
  for (int& fd : child->inherited) fd = fcntl(fd, F_DUPFD_CLOEXEC, kFree);
  for (int i = 0; i < kInheritedMax; ++i) {
    if (child->report < 0 || dup2(child->inherited[i], kFirst + i) < 0) return errno;
  }
  return 0;
}

[[noreturn]] void RunChild(Child child, const rank::StartSpec& spec,
                           const InheritedLimits& limits) {
  BeginChild(child.keeper);
  if (dup2(child.input, 0) < 0 || dup2(child.output, 1) < 0 || dup2(child.output, 2) < 0) {
    Fail(child.report, rank::kStageLog, errno);
  }
  const bool inherits = child.inherited[0] >= 0;
  if (const int error = inherits ? Inherit(&child) : 0; error != 0)
    Fail(child.report, rank::kStageFork, error);
  syscall(SYS_close_range, inherits ? 3u + kInheritedMax : 3u, ~0u,
          CLOSE_RANGE_CLOEXEC);  // all are CLOEXEC already; this also covers what we inherited
  if (const int error = BecomeWhoItRunsAs(child.keeper, spec, limits); error != 0)
    Fail(child.report, rank::kStageUser, error);
  if (chdir(spec.cwd.c_str()) != 0) Fail(child.report, rank::kStageCwd, errno);
  environ = child.envp;
  execvp(child.argv[0], child.argv);
  Fail(child.report, rank::kStageExec, errno);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
  return fcntl(ends[0], F_SETFL, O_NONBLOCK) ==
         0;  // the reading end only: the rank expects to block
}

}  // namespace

std::vector<std::string> MergeEnv(const std::vector<std::string>& common,
                                  const std::vector<std::string>& own,
                                  const std::vector<std::string>& extra) {
  std::vector<std::string> env = {kDefaultPath};
  for (const auto* list : {&common, &own, &extra}) {
    for (const std::string& entry : *list) Put(&env, entry);
  }
  return env;
}

namespace {

int Spawn(const rank::StartSpec& spec, const std::vector<std::string>& args,
          const std::vector<std::string>& env, const InheritedLimits& limits,
          const StandbyEnds* standby, Spawned* out) {
  UniqueFd output_write, report_write;
  if (!MakePipe(&out->output, &output_write) || !MakePipe(&out->report, &report_write))
    return errno;
  UniqueFd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return errno;
  std::vector<char*> argv = Pointers(args);
  std::vector<char*> envp = Pointers(env);
  Child child = {getpid(),           input.get(), output_write.get(),
                 report_write.get(), argv.data(), envp.data()};
  if (standby != nullptr) {
    child.inherited[0] = standby->go.get();
    child.inherited[1] = standby->start.get();
  }
  const pid_t pid = fork();
  if (pid < 0) return errno;
  if (pid == 0) RunChild(child, spec, limits);
  out->pid = pid;
  return 0;
}

}  // namespace

int SpawnRank(const rank::StartSpec& spec, const rank::RankSpec& rank,
              const std::vector<std::string>& env, const InheritedLimits& limits, Spawned* out) {
  return Spawn(spec, rank.args, env, limits, nullptr, out);
}

int SpawnStandby(const rank::StartSpec& spec, const std::vector<std::string>& env,
                 const InheritedLimits& limits, Spawned* out, StandbyEnds* ends) {
  int go[2];
  if (pipe2(go, O_CLOEXEC) != 0) return errno;
  ends->go.Reset(go[1]);
  ends->start.Reset(memfd_create("holdfast-standby", MFD_CLOEXEC));
  StandbyEnds theirs;
  theirs.go.Reset(go[0]);
  if (!ends->start.valid()) return errno;
  // Reopened, so that the two do not share an offset, and what we write cannot be written by it.
  const std::string path = "/proc/self/fd/" + std::to_string(ends->start.get());
  theirs.start.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!theirs.start.valid()) return errno;
  return Spawn(spec, spec.standby, env, limits, &theirs, out);
}

int WakeStandby(const StandbyEnds& ends, const std::string& start) {
  size_t done = 0;
  while (done < start.size()) {
    const ssize_t n = write(ends.start.get(), start.data() + done, start.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    done += static_cast<size_t>(n);
  }
  return write(ends.go.get(), "g", 1) == 1 ? 0 : errno;
}

namespace {

[[noreturn]] void RunService(const Child& child, int socket, const rank::StartSpec& spec,
                             const InheritedLimits& limits) {
  BeginChild(child.keeper);
  // The ranks need it to their end, whatever the whole step is told.
  if (InStep()) IgnoreStepSignals();
  dup2(child.input, 0);
  dup2(child.output, 1);
  // Out of the way of the number that the socket gets.
  const int report = fcntl(child.report, F_DUPFD_CLOEXEC, rank::kServiceFd + 1);
  // Itself when it is that number already: then only the flag is to go.
  const int placed =
      socket == rank::kServiceFd ? fcntl(socket, F_SETFD, 0) : dup2(socket, rank::kServiceFd);
  if (report < 0 || placed < 0) _exit(kExitNotStarted);
  syscall(SYS_close_range, static_cast<unsigned>(rank::kServiceFd) + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  if (const int error = BecomeWhoItRunsAs(child.keeper, spec, limits); error != 0)
    Fail(report, rank::kStageService, error);
  environ = child.envp;
  execv(child.argv[0], child.argv);
  Fail(report, rank::kStageService, errno);
}

}  // namespace

pid_t SpawnService(const rank::StartSpec& spec, int socket, const InheritedLimits& limits) {
  const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  UniqueFd report, report_write;
  if (!null_fd.valid() || !MakePipe(&report, &report_write)) return -errno;
  std::vector<char*> argv = Pointers(spec.service);
  const std::vector<std::string> environment = {kDefaultPath};
  std::vector<char*> envp = Pointers(environment);
  const Child child = {getpid(),           null_fd.get(), null_fd.get(),
                       report_write.get(), argv.data(),   envp.data()};
  const pid_t pid = fork();
  if (pid < 0) return -errno;
  if (pid == 0) RunService(child, socket, spec, limits);
  report_write.Reset();
  pollfd told = {report.get(), POLLIN, 0};
  int ready;
  do {
    ready = poll(&told, 1, kServiceExecMs);
  } while (ready < 0 && errno == EINTR);
  ChildReport what;
  const bool failed = ready > 0 && read(report.get(), &what, sizeof(what)) == sizeof(what);
  if (ready != 0 && !failed) return pid;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return failed ? -what.error : -ETIMEDOUT;
}

}  // namespace holdfast::keeper
