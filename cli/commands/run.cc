// SPDX-License-Identifier: Apache-2.0
// `holdfast run`: the ranks of one machine under the whole of Holdfast, with nothing set up before
// and nothing left behind. A scheduler and an agent of its own (the supervisor of `up`, in a
// process that ends with this one) live in a directory of their own; this process submits the job,
// shows its output and waits.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/guest/guest.h"
#include "cli/guest/plan.h"
#include "cli/log_reader.h"
#include "cli/output.h"
#include "cli/run_request.h"
#include "cli/state_dir.h"
#include "cli/submission.h"
#include "cli/up/background.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"
#include "cli/up/supervisor.h"
#include "cli/wait.h"
#include "proto/job_spec.h"
#include "proto/text.h"

extern char** environ;

namespace holdfast::cli {
namespace {

constexpr size_t kNameCharsMax = 40;
// Longest socket path below a state directory: "/nodes/n0/keepers/j-1/sock" and the like.
constexpr size_t kStatePathBytesMax = 60;

// A directory for this run alone: --state, else a fresh one where temporary files go.
class StateDir {
 public:
  static absl::StatusOr<StateDir> Make(const std::string& wanted) {
    StateDir out;
    if (!wanted.empty()) {
      out.path_ = AbsolutePath(wanted, WorkingDirectory());
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
  const std::string& path() const { return path_; }
  // What failed is worth a look afterwards.
  void Settle(bool failed) {
    if (!temporary_) return;
    if (failed) {
      Hint(absl::StrCat("holdfast: logs and state are kept in ", path_,
                        "; look with: holdfast up -d --state ", path_,
                        " && holdfast describe --state ", path_, " j-1"));
      return;
    }
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    if (error) Hint(absl::StrCat("holdfast: ", path_, " cannot be removed: ", error.message()));
  }

 private:
  std::string path_;
  bool temporary_ = false;
};

// The supervisor's process: ended, and waited for, with this object.
class Cluster {
 public:
  Cluster(Background background, std::string state)
      : background_(std::move(background)), state_(std::move(state)) {}
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster() {
    ::kill(background_.pid, SIGINT);  // TERM would leave jobs running
    ::kill(background_.pid, SIGCONT);
    while (::waitpid(background_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    // One that was killed took its daemons with it, but not what outlives daemons by design.
    for (const KeeperProcess& keeper : LiveKeepers(state_)) ::kill(keeper.pid, SIGKILL);
  }

 private:
  Background background_;
  const std::string state_;
};

std::string NameOf(const RunRequest& request) {
  if (!request.name.empty()) return request.name;
  const std::string file = std::filesystem::path(request.program[0]).filename().string();
  return proto::JobNameOf(file.substr(0, kNameCharsMax), "run");
}

// All of the caller's environment, as torchrun passes it on, but what is the rank's own.
std::vector<std::string> EnvironmentOf(const RunRequest& request) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (!proto::IsEnvironmentName(name) || proto::IsReservedEnvironment(name)) continue;
    if (absl::StartsWith(name, "HOLDFAST_")) continue;  // of a run around this one
    out.push_back(text);
  }
  if (!request.role.empty()) out.push_back(absl::StrCat("ROLE_NAME=", request.role));
  return out;
}

absl::StatusOr<v1::JobSpec> SpecOf(const RunRequest& request) {
  Submission submission;
  HF_ASSIGN_OR_RETURN(submission.command, CommandOf(request));
  submission.name = NameOf(request);
  submission.ranks_per_node = absl::StrCat(request.ranks);
  submission.grace = request.grace;
  submission.time_limit = request.time_limit;
  submission.fence_after = request.fence_after;
  if (request.max_restarts.has_value()) submission.restarts = absl::StrCat(*request.max_restarts);
  submission.environment = EnvironmentOf(request);
  return BuildSpec(submission);
}

absl::StatusOr<Background> StartCluster(const std::string& state) {
  const RunDir run_dir(state);
  const UpOptions options;
  HF_ASSIGN_OR_RETURN(PreparedUp up, PrepareUp(run_dir, options));
  return StartInBackground(run_dir, std::move(up), options.nodes, /*ends_with_caller=*/true);
}

// Tells on stderr, beside the ranks' output, what happens to the job: until its object ends.
class Narrator {
 public:
  Narrator(SchedulerClient* client, std::string job) : client_(client), job_(std::move(job)) {
    thread_ = std::thread([this] { Run(); });
  }
  Narrator(const Narrator&) = delete;
  Narrator& operator=(const Narrator&) = delete;
  ~Narrator() {
    {
      const MutexLock lock(mutex_);
      ended_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run() {
    uint64_t after = 0;
    while (true) {
      grpc::ClientContext context;
      proto::PrepareContext(&context, kStreamMs);
      {
        const MutexLock lock(mutex_);
        if (ended_) return;
        context_ = &context;
      }
      v1::WatchEventsRequest request;
      request.set_job(job_);
      request.set_follow(true);
      request.set_after_sequence(after);
      auto reader = client_->stub()->WatchEvents(&context, request);
      const absl::Status status =
          ReadStream<v1::Event>(&context, reader.get(), [&](const v1::Event& event) {
            after = std::max(after, event.sequence());
            Tell(event);
            return true;
          });
      const MutexLock lock(mutex_);
      context_ = nullptr;
      if (ended_) return;
      if (!status.ok()) changed_.WaitForNs(mutex_, kRetryPauseMs * kNsPerMs);
    }
  }

  static void Tell(const v1::Event& event) {
    // Not where it starts: only the script knows which checkpoint it loads.
    if (event.kind() == "job.restarted")
      Hint(absl::StrCat("holdfast: attempt ", event.attempt(), " starts"));
    if (event.kind() == "incident.opened" || event.kind() == "incident.named")
      Hint(absl::StrCat("holdfast: ", event.text()));
  }

  SchedulerClient* const client_;
  const std::string job_;
  Mutex mutex_;
  CondVar changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Shows the output to its end. The first interrupt cancels the job (TERM, 10 s, KILL) and goes on
// showing what its ranks still say; the second stops waiting.
int ShowToTheEnd(SchedulerClient* client, InterruptGuard* guard, const RunRequest& request,
                 const std::string& id) {
  LogOptions options;
  options.job = id;
  options.follow = true;
  options.tell_end = false;  // the job's own end is told
  options.ranks = request.shown_ranks;
  LogReader reader(client, guard, options, /*json=*/false, /*with_rank=*/request.ranks > 1);
  int code = reader.Run();
  if (code != kExitInterrupted) return code;
  Hint(absl::StrCat("holdfast: interrupted: ending ", id, "; again to stop waiting"));
  guard->Rearm();
  if (auto cancelled = CancelJob(client, id); !cancelled.ok()) return Fail(cancelled.status());
  code = reader.Run();
  return kExitInterrupted;
}

int RunJob(SchedulerClient* client, InterruptGuard* guard, const RunRequest& request,
           const v1::JobSpec& spec) {
  v1::SubmitJobRequest submit;
  submit.set_idempotency_key(proto::NewIdempotencyKey());
  *submit.mutable_spec() = spec;
  auto submitted = client->Call("submit the job", &v1::Scheduler::Stub::SubmitJob, submit);
  if (!submitted.ok()) return Fail(submitted.status());
  const std::string id = ToString(JobId{submitted->job()});
  const Narrator narrator(client, id);
  const int shown = ShowToTheEnd(client, guard, request, id);
  if (shown == kExitInterrupted) return shown;
  // What could not be shown does not decide how the job ended.
  auto end = WaitForEnd(client, guard, id);
  if (!end.ok()) return Fail(end.status());
  if (end->state() != v1::JOB_STATE_DONE || end->restarts() > 0) {
    Hint(absl::StrCat("holdfast: ", Short(end->state()),
                      end->reason().empty() ? "" : absl::StrCat(": ", end->reason()), "; ",
                      end->restarts(), " restart(s)"));
  }
  return ExitCodeOfEnd(*end);
}

int Run(const Invocation& invocation) {
  auto request = ParseRun(invocation.command, ReadMachineSize());
  if (!request.ok()) return Fail(request.status());
  auto guest = PlanGuest(ProcessEnvironment(), WorkingDirectory(), *request);
  if (!guest.ok()) return Fail(guest.status());
  if (guest->has_value()) {
    auto guest_spec = SpecOf(*request);
    if (!guest_spec.ok()) return Fail(guest_spec.status());
    return RunGuest(**guest, *request, *std::move(guest_spec));
  }
  for (const std::string& sentence : request->without_effect)
    Hint(absl::StrCat("holdfast: ", sentence));
  auto spec = SpecOf(*request);
  if (!spec.ok()) return Fail(spec.status());
  auto state = StateDir::Make(request->state);
  if (!state.ok()) return Fail(state.status());
  auto background = StartCluster(state->path());
  if (!background.ok()) {
    state->Settle(/*failed=*/true);
    return Fail(background.status());
  }
  int code = kExitDone;
  {
    const Cluster cluster(*std::move(background), state->path());
    InterruptGuard guard;
    SchedulerClient client(absl::StrCat("unix:", state->path(), "/scheduler.sock"),
                           kConnectMsDefault);
    code = RunJob(&client, &guard, *request, *spec);
  }
  state->Settle(code != kExitDone && code != kExitInterrupted);
  return code;
}

}  // namespace

void AddRun(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "run", "Runs a script on this machine, in torchrun's place",
      "  holdfast run --nproc-per-node 4 train.py --epochs 3      torchrun's flags; see "
      "docs/torchrun.md\n"
      "  holdfast run --nproc-per-node gpu -m my.trainer          one rank for each GPU\n"
      "  holdfast run --no-python --nproc-per-node 2 ./program\n"
      "A rank that dies is named, the others are stopped, and all start again with a fresh store, "
      "at most --max-restarts times.\n"
      "Ctrl-C ends all. Nothing has to run before and nothing is left behind; --state DIR keeps "
      "logs and state.\n");
  verb.Then([=] { invocation->run = [=] { return Run(*invocation); }; });
}

}  // namespace holdfast::cli
