// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/daemons.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/step.h"
#include "cli/state_dir.h"
#include "cli/up/background.h"
#include "cli/up/keepers.h"
#include "cli/up/run_dir.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kEndMsMax = 90'000;    // of the daemons, once the owner's pipe is closed
constexpr char kNodeDirectory[] = "n0";  // one node in each state directory

// Files of /proc tell no size: they are read to their end.
std::string ReadProc(pid_t pid, const std::string& what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

absl::StatusOr<GuestState> GuestState::Make(const std::string& wanted, const GuestPlan& plan) {
  std::string own = wanted;
  if (!wanted.empty())
    absl::StrAppend(&own, "/", plan.slurm ? absl::StrCat(plan.slurm_job, ".") : "", plan.node);
  GuestState out;
  HF_ASSIGN_OR_RETURN(out.dir_, OwnStateDir::Make(own));
  if (out.dir_.temporary()) return out;
  HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(out.path()));
  if (::chmod(out.path().c_str(), 0700) != 0)
    return ErrnoStatus(errno, absl::StrCat("chmod ", out.path()));
  return out;
}

void GuestState::Settle(bool failed) const {
  ::unlink(KeyFile().c_str());
  dir_.Settle(failed, "logs and state of this node");
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
  PreparedUp up;
  HF_ASSIGN_OR_RETURN(up.lock, run_dir.Lock());
  up.config.daemons = std::move(daemons);
  HF_ASSIGN_OR_RETURN(Ownership ownership, MakeOwnership());
  // It stays in the caller's session: that is the step's.
  auto started = ForkSupervisor(run_dir, std::move(up), std::move(ownership),
                                /*own_session=*/false);
  // Whatever a daemon's own code says: this task was refused a part in the run.
  if (!started.ok() && !absl::IsDeadlineExceeded(started.status()))
    return absl::FailedPreconditionError(started.status().message());
  if (!started.ok()) return started.status();
  return std::unique_ptr<GuestDaemons>(new GuestDaemons(state.path(), *std::move(started)));
}

GuestDaemons::~GuestDaemons() {
  background_.ownership.owner.Reset();
  EndBackground(background_.pid, SIGCONT, kEndMsMax);
  KillKeepers(state_, nullptr);
}

bool GuestDaemons::Alive() const {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, background_.pid, 0)));
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
