// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/daemons.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/step.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/up/background.h"
#include "cli/up/keepers.h"
#include "cli/up/run_dir.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

// Longest socket path below a state directory: "/nodes/n0/keepers/j-1/sock" and the like.
constexpr size_t kStatePathBytesMax = 60;
constexpr int kReadyMs = 120'000;  // of all daemons of a task
constexpr size_t kReportBytesMax = 64 << 10;
constexpr char kNodeDirectory[] = "n0";  // one node in each state directory

void SayWithTime(const std::string& text) {
  Hint(absl::StrCat(Rfc3339(SystemClock().WallNs()), " ", text));
}

struct Pipes {
  UniqueFd report_read, report_write;  // nothing: ready; else the error
  UniqueFd owner_read, owner_write;
};

absl::StatusOr<Pipes> MakePipes() {
  int report[2], owner[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  Pipes pipes{UniqueFd(report[0]), UniqueFd(report[1]), UniqueFd(), UniqueFd()};
  if (::pipe2(owner, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  pipes.owner_read = UniqueFd(owner[0]);
  pipes.owner_write = UniqueFd(owner[1]);
  return pipes;
}

void Tell(UniqueFd* report, const std::string& text) {
  const ssize_t written = ::write(report->get(), text.data(), text.size());
  (void)written;  // who does not read any more is gone
  report->Reset();
}

// The supervisor's process. It stays in the caller's session: that is the step's.
[[noreturn]] void BeTheSupervisor(const RunDir& run_dir, std::vector<DaemonSpec> daemons,
                                  Pipes pipes) {
  pipes.report_read.Reset();
  pipes.owner_write.Reset();
  auto log = run_dir.OpenLog("up");
  const UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null_fd.get(), STDIN_FILENO);
  const int output = log.ok() ? log->get() : null_fd.get();
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  if (::chdir("/") != 0) ::_exit(kExitRefused);
  SupervisorConfig config;
  config.daemons = std::move(daemons);
  config.say = [](const std::string& text) { SayWithTime(text); };
  config.alive_fd = pipes.report_write.get();
  config.caller_fd = pipes.owner_read.get();
  config.on_ready = [&pipes] { Tell(&pipes.report_write, "0\n"); };
  absl::Status failure;
  const int code = RunSupervisor(run_dir, std::move(config), &failure);
  if (!failure.ok()) SayWithTime(std::string(failure.message()));
  KillKeepers(run_dir.state(), nullptr);
  if (pipes.report_write.valid())
    Tell(&pipes.report_write,
         absl::StrCat("1\n", failure.ok() ? "ended before all was ready" : failure.message()));
  ::_exit(code);
}

// "0\n": ready. Else the error, or that nothing came in time.
absl::Status WaitForReport(int fd) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + kReadyMs * kNsPerMs;
  std::string text;
  while (text.size() < kReportBytesMax && text != "0\n") {
    const int64_t left_ms = (end_ns - clock.MonoNs()) / kNsPerMs;
    pollfd ready{fd, POLLIN, 0};
    if (left_ms <= 0 || ::poll(&ready, 1, static_cast<int>(left_ms)) == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("Holdfast's daemons are not ready after ", kReadyMs / 1000, " s"));
    }
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  if (text == "0\n") return absl::OkStatus();
  const size_t line = text.find('\n');
  return absl::FailedPreconditionError(
      line == std::string::npos ? "the supervisor ended without a word" : text.substr(line + 1));
}

// Files of /proc tell no size: they are read to their end.
std::string ReadProc(pid_t pid, const std::string& what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

absl::StatusOr<GuestState> GuestState::Make(const std::string& wanted, const GuestPlan& plan) {
  GuestState out;
  if (!wanted.empty()) {
    out.path_ = absl::StrCat(AbsolutePath(wanted, WorkingDirectory()), "/",
                             plan.slurm ? absl::StrCat(plan.slurm_job, ".") : "", plan.node);
    HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(out.path_));
    if (::chmod(out.path_.c_str(), 0700) != 0)
      return ErrnoStatus(errno, absl::StrCat("chmod ", out.path_));
    return out;
  }
  const char* set = std::getenv("TMPDIR");
  std::string base = set == nullptr || set[0] != '/' ? "/tmp" : set;
  if (base.size() > kStatePathBytesMax) base = "/tmp";  // sockets have short names
  std::string path = absl::StrCat(base, "/holdfast-run-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr)
    return ErrnoStatus(errno, absl::StrCat("make a directory in ", base));
  out.path_ = path;
  out.temporary_ = true;
  return out;
}

void GuestState::Settle(bool failed) {
  ::unlink(KeyFile().c_str());
  if (!temporary_) return;
  if (failed) {
    Hint(absl::StrCat("holdfast: logs and state of this node are kept in ", path_));
    return;
  }
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) Hint(absl::StrCat("holdfast: ", path_, " cannot be removed: ", error.message()));
}

absl::StatusOr<std::vector<DaemonSpec>> GuestDaemonsOf(const GuestState& state,
                                                       const GuestPlan& plan,
                                                       const GuestAddresses& addresses) {
  std::vector<DaemonSpec> daemons;
  std::string scheduler = addresses.scheduler;
  if (plan.head()) {
    HF_ASSIGN_OR_RETURN(const std::string program, FindProgram("holdfast-scheduler"));
    daemons.push_back({"scheduler",
                       {program, "--state", state.path(), "--listen", addresses.scheduler,
                        "--key-file", state.KeyFile()},
                       /*gets_owner=*/false});
    scheduler = absl::StrCat("unix:", state.SchedulerSocket());
  }
  HF_ASSIGN_OR_RETURN(const std::string agent, FindProgram("holdfast-agent"));
  const std::string directory = absl::StrCat(state.path(), "/nodes/", kNodeDirectory);
  HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(directory));
  daemons.push_back({absl::StrCat("agent-", kNodeDirectory),
                     {agent, "--node", plan.node, "--state", directory, "--scheduler", scheduler,
                      "--jobs-dir", JoinPath(state.path(), "jobs"), "--devices", "none", "--listen",
                      absl::StrCat(addresses.own_host, ":0"), "--key-file", state.KeyFile(),
                      "--owner-fd", absl::StrCat(kInheritedFd)},
                     /*gets_owner=*/true});
  return daemons;
}

absl::StatusOr<std::unique_ptr<GuestDaemons>> GuestDaemons::Start(const GuestState& state,
                                                                  std::vector<DaemonSpec> daemons) {
  // What loses its parent comes to us, not to the machine's init: it stays in the step.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
    return ErrnoStatus(errno, "prctl(PR_SET_CHILD_SUBREAPER)");
  if (::setenv(kInStepVariable, "1", /*overwrite=*/1) != 0) return ErrnoStatus(errno, "setenv");
  const RunDir run_dir(state.path());
  HF_RETURN_IF_ERROR(run_dir.Prepare(/*nodes=*/1));
  HF_ASSIGN_OR_RETURN(const UniqueFd lock, run_dir.Lock());
  HF_ASSIGN_OR_RETURN(Pipes pipes, MakePipes());
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) BeTheSupervisor(run_dir, std::move(daemons), std::move(pipes));
  pipes.report_write.Reset();
  pipes.owner_read.Reset();
  std::unique_ptr<GuestDaemons> started(
      new GuestDaemons(state.path(), pid, std::move(pipes.owner_write)));
  HF_RETURN_IF_ERROR(WaitForReport(pipes.report_read.get()));
  return started;
}

GuestDaemons::~GuestDaemons() {
  owner_.Reset();
  ::kill(pid_, SIGCONT);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  KillKeepers(state_, nullptr);
}

bool GuestDaemons::Alive() const {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  pollfd gone{fd.get(), POLLIN, 0};
  return fd.valid() && ::poll(&gone, 1, 0) == 0;
}

void GuestDaemons::SignalRanks(int signal) const {
  for (const KeeperProcess& keeper : LiveKeepers(state_)) {
    const std::string children =
        ReadProc(keeper.pid, absl::StrCat("task/", keeper.pid, "/children"));
    for (const absl::string_view word : absl::StrSplit(children, ' ', absl::SkipWhitespace())) {
      pid_t rank = 0;
      if (!absl::SimpleAtoi(word, &rank)) continue;
      // Not what a rank left behind, nor the store: they have no rank of their own.
      const std::string environment = std::string(1, '\0') + ReadProc(rank, "environ");
      if (absl::StrContains(environment, absl::string_view("\0LOCAL_RANK=", 12)))
        ::kill(rank, signal);
    }
  }
}

}  // namespace holdfast::cli
