// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/guest.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/step.h"
#include "base/subprocess.h"
#include "cli/exit_code.h"
#include "cli/guest/daemons.h"
#include "cli/guest/network.h"
#include "cli/guest/run_file.h"
#include "cli/guest/signals.h"
#include "cli/guest/watch.h"
#include "cli/log_reader.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/wait.h"
#include "proto/run_key.h"

extern char** environ;

namespace holdfast::cli {
namespace {

constexpr char kJob[] = "j-1";           // the scheduler is new, and this is its one job
constexpr int64_t kJoinMs = 300'000;     // from the first task's start to the last one's
constexpr int64_t kHeadGoneMs = 30'000;  // a scheduler that dies is back within seconds
constexpr int64_t kLookMs = 2'000;       // at a job that is not there yet, or at nodes
constexpr int64_t kFarewellMs = 10'000;  // for the others to hear of the end
constexpr int64_t kRequeueMs = 30'000;
// The two words by which tasks take leave of each other, as reasons to drain a node.
constexpr char kOutputShown[] = "the output is shown";  // the first task: nobody needs the logs
constexpr char kRunOver[] = "the run is over";          // another one: it knows how the job ended
constexpr size_t kShownRanksMax = 256;                  // the scheduler reads no more logs at once

// The task as a whole, in the order in which it is made; ended in reverse.
struct Task {
  const GuestPlan* plan;
  const RunRequest* request;
  GuestState state;
  std::string key;
  GuestAddresses addresses;
};

// Two tasks of one step may both see the loss: the second is refused, which is fine.
void Requeue(const GuestPlan& plan, const std::string& why) {
  Hint(absl::StrCat("holdfast: ", why));
  if (!plan.slurm) return;
  const auto scontrol = FindProgram("scontrol");
  if (!scontrol.ok()) {
    Hint(absl::StrCat("holdfast: cannot ask Slurm to requeue the job: ",
                      scontrol.status().message()));
    return;
  }
  Hint(absl::StrCat("holdfast: asking Slurm to requeue job ", plan.slurm_job));
  ProgramOptions options;
  options.deadline_ms = kRequeueMs;
  const auto result = RunProgram({*scontrol, "requeue", absl::StrCat(plan.slurm_job)}, options);
  if (!result.ok()) {
    Hint(absl::StrCat("holdfast: scontrol requeue: ", result.status().message()));
  } else if (result->exit_code != 0) {
    Hint(absl::StrCat("holdfast: scontrol requeue ", plan.slurm_job, ": ", result->error_output,
                      "(only a batch job that was not submitted with --no-requeue can be)"));
  }
}

absl::Status WriteKey(const Task& task) {
  return WriteRunFile(task.state.KeyFile(), {task.key, task.addresses.scheduler});
}

size_t ReadyNodes(const v1::ListNodesResponse& nodes) {
  return static_cast<size_t>(std::count_if(
      nodes.nodes().begin(), nodes.nodes().end(),
      [](const v1::NodeStatus& node) { return node.state() == v1::NODE_STATE_READY; }));
}

// Until so many nodes have joined as the job takes. An interrupt ends it, with CANCELLED.
absl::Status WaitForNodes(SchedulerClient* client, InterruptGuard* guard, const GuestPlan& plan) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + kJoinMs * kNsPerMs;
  uint64_t sequence = 0;
  size_t ready = 0;
  while (!guard->interrupted()) {
    HF_ASSIGN_OR_RETURN(
        const v1::ListNodesResponse nodes,
        client->Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest()));
    ready = ReadyNodes(nodes);
    if (ready >= plan.nodes) return absl::OkStatus();
    if (clock.MonoNs() >= end_ns) {
      return absl::UnavailableError(absl::StrCat("only ", ready, " of ", plan.nodes,
                                                 " nodes have joined within ", kJoinMs / 1000,
                                                 " s; look at the output of the other tasks"));
    }
    const absl::Status stream = WaitForEvent(client, guard, "", "node.", kLookMs, &sequence);
    if (IsBroken(stream)) guard->Pause(kRetryPauseMs);
  }
  return absl::CancelledError("interrupted before the job was submitted");
}

// --local-ranks-filter is of each node.
std::vector<uint32_t> ShownRanks(const GuestPlan& plan, const RunRequest& request) {
  std::vector<uint32_t> shown;
  for (uint32_t node = 0; node < plan.nodes; ++node) {
    for (const uint32_t local : request.shown_ranks) shown.push_back(node * request.ranks + local);
  }
  const size_t all = size_t{plan.nodes} * request.ranks;
  for (uint32_t rank = 0; shown.empty() && all > kShownRanksMax && rank < all; ++rank)
    shown.push_back(rank);
  if (shown.size() > kShownRanksMax) {
    Hint(absl::StrCat("holdfast: the output of the first ", kShownRanksMax, " of ", shown.size(),
                      " ranks is shown; --local-ranks-filter chooses others"));
    shown.resize(kShownRanksMax);
  }
  return shown;
}

int CodeOfEnd(const v1::JobStatus& end, bool interrupted) {
  if (end.state() != v1::JOB_STATE_CANCELLED) return ExitCodeOfEnd(end);
  // Cancelled by whom? Not by us, so by the first task, which gave the run up.
  return interrupted ? static_cast<int>(kExitInterrupted) : kExitRequeue;
}

// Shows the output to its end. The first interrupt cancels the job (TERM, 10 s, KILL) and goes on
// showing; the second stops waiting.
int ShowToTheEnd(SchedulerClient* client, InterruptGuard* guard, const Task& task) {
  LogOptions options;
  options.job = kJob;
  options.follow = true;
  options.tell_end = false;  // the job's own end is told
  options.ranks = ShownRanks(*task.plan, *task.request);
  const bool several = task.plan->nodes * task.request->ranks > 1;
  LogReader reader(client, guard, options, /*json=*/false, several);
  int code = reader.Run();
  if (code != kExitInterrupted) return code;
  guard->Rearm();  // first: who reads the next line may answer it at once
  Hint("holdfast: interrupted: the ranks get TERM, and KILL after 10 s; again to stop waiting");
  if (auto cancelled = CancelJob(client, kJob); !cancelled.ok()) return Fail(cancelled.status());
  KeepLedger(client, kJob);  // after the second one nobody could be asked
  code = reader.Run();
  return kExitInterrupted;
}

int SubmitAndShow(SchedulerClient* client, InterruptGuard* guard, const Task& task,
                  const GuestDaemons& daemons, const v1::JobSpec& spec) {
  if (const absl::Status joined = WaitForNodes(client, guard, *task.plan); !joined.ok())
    return Fail(joined);
  v1::SubmitJobRequest submit;
  submit.set_idempotency_key(proto::NewIdempotencyKey());
  *submit.mutable_spec() = spec;
  auto submitted = client->Call("submit the job", &v1::Scheduler::Stub::SubmitJob, submit);
  if (!submitted.ok()) return Fail(submitted.status());
  const GuestWatch watch(client->endpoint(), kJob, spec.fence_ms(), &daemons, task.request->notify);
  const bool interrupted = ShowToTheEnd(client, guard, task) == kExitInterrupted;
  // What could not be shown does not decide how the job ended.
  auto end = daemons.Alive() ? WaitForEnd(client, guard, kJob)
                             : absl::StatusOr<v1::JobStatus>(client->Unreachable());
  if (watch.gave_up() && !end.ok()) {
    Requeue(*task.plan, "the run cannot go on");
    return kExitRequeue;
  }
  if (!end.ok()) return Fail(end.status());
  TellEnd(*end);
  if (!interrupted) KeepLedger(client, kJob);
  if (watch.gave_up()) Requeue(*task.plan, "too few nodes are left");
  return CodeOfEnd(*end, interrupted && !watch.gave_up());
}

void Say(SchedulerClient* client, const GuestPlan& plan, const char* word) {
  v1::DrainNodeRequest request;
  request.set_idempotency_key(proto::NewIdempotencyKey());
  request.set_node(plan.node);
  request.set_reason(word);
  IgnoreError(client->Call("leave the run", &v1::Scheduler::Stub::DrainNode, request).status(),
              "the other tasks notice that this one is gone");
}

// The last lines of this node's ranks are read from its agent: it stays until the first task has
// shown them, or is gone.
void WaitForOutputShown(SchedulerClient* client, InterruptGuard* guard,
                        const GuestDaemons& daemons) {
  uint64_t sequence = 0;
  while (!guard->interrupted() && daemons.Alive()) {
    auto nodes =
        client->Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest());
    if (!nodes.ok()) return;
    const bool shown = std::any_of(
        nodes->nodes().begin(), nodes->nodes().end(),
        [](const v1::NodeStatus& node) { return absl::StrContains(node.reason(), kOutputShown); });
    if (shown) return;
    const absl::Status stream = WaitForEvent(client, guard, "", "node.", kLookMs, &sequence);
    if (IsBroken(stream)) guard->Pause(kRetryPauseMs);
  }
}

// The others say that they know the end by draining their node; a lost one says nothing.
void WaitForFarewell(SchedulerClient* client, InterruptGuard* guard, const GuestPlan& plan) {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + kFarewellMs * kNsPerMs;
  uint64_t sequence = 0;
  while (!guard->interrupted() && clock.MonoNs() < end_ns) {
    auto nodes =
        client->Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest());
    if (!nodes.ok()) return;
    const bool waits =
        std::any_of(nodes->nodes().begin(), nodes->nodes().end(), [&](const v1::NodeStatus& node) {
          return node.name() != plan.node && node.state() != v1::NODE_STATE_DRAINED &&
                 node.state() != v1::NODE_STATE_DRAINING && node.state() != v1::NODE_STATE_LOST;
        });
    if (!waits) return;
    const absl::Status stream = WaitForEvent(client, guard, "", "node.", kRetryPauseMs, &sequence);
    if (IsBroken(stream)) guard->Pause(kRetryPauseMs);
  }
}

// The exit code of the job, or why this task stops waiting for it.
int FollowJob(SchedulerClient* client, InterruptGuard* guard, const Task& task,
              const GuestDaemons& daemons) {
  const SystemClock clock;
  int64_t heard_ns = clock.MonoNs();
  bool interrupted = false;
  uint64_t sequence = 0;
  while (true) {
    v1::GetJobRequest request;
    request.set_job(kJob);
    auto status = client->Call("look at the job", &v1::Scheduler::Stub::GetJob, request);
    const int failed = status.ok() ? kExitDone : ExitCodeOf(status.status());
    if (status.ok() && IsEnded(*status)) {
      WaitForOutputShown(client, guard, daemons);
      Say(client, *task.plan, kRunOver);
      return CodeOfEnd(*status, interrupted);
    }
    if (failed == kExitRefused) return Fail(status.status());
    // Interrupted before there was a job, or the first task did not wait for us: not a loss.
    if (interrupted && failed != kExitDone) return kExitInterrupted;
    if (failed != kExitUnreachable) heard_ns = clock.MonoNs();
    if (!daemons.Alive()) {
      Hint("holdfast: the supervisor of this node was killed; its ranks end");
      return kExitRequeue;
    }
    if (clock.MonoNs() - heard_ns > kHeadGoneMs * kNsPerMs) {
      Requeue(*task.plan, absl::StrCat("the first task of this run, at ", task.addresses.scheduler,
                                       ", has not answered for ", kHeadGoneMs / 1000,
                                       " s: its node is lost, and the run with it"));
      return kExitRequeue;
    }
    if (guard->interrupted()) {
      if (interrupted) return kExitInterrupted;
      interrupted = true;
      guard->Rearm();
      Hint("holdfast: interrupted: ending the job; again to stop waiting");
      IgnoreError(CancelJob(client, kJob).status(), "the first task is told too");
    }
    const absl::Status stream = WaitForEvent(client, guard, "", "job.", kLookMs, &sequence);
    if (IsBroken(stream)) guard->Pause(kRetryPauseMs);
  }
}

absl::StatusOr<std::unique_ptr<GuestDaemons>> StartDaemons(const Task& task) {
  HF_RETURN_IF_ERROR(WriteKey(task));
  HF_ASSIGN_OR_RETURN(std::vector<DaemonSpec> daemons,
                      GuestDaemonsOf(task.state, *task.plan, task.addresses));
  return GuestDaemons::Start(task.state, std::move(daemons));
}

int RunHead(Task* task, const v1::JobSpec& spec) {
  auto host = ListenAddress(*task->plan, task->request->local_addr);
  if (!host.ok()) return Fail(host.status());
  task->key = task->plan->key.empty() ? proto::NewRunKey() : task->plan->key;
  task->addresses = {absl::StrCat(*host, ":", task->plan->port), *host};
  auto daemons = StartDaemons(*task);
  if (!daemons.ok()) return Fail(daemons.status());
  const std::string& file = task->plan->run_file;
  if (!file.empty()) {
    if (const auto told = WriteRunFile(file, {task->key, task->addresses.scheduler}); !told.ok())
      return Fail(told);
  }
  int code = kExitDone;
  {
    InterruptGuard guard;
    const RankSignals signals(*daemons->get(), /*pass_on=*/!task->plan->slurm);
    SchedulerClient client(absl::StrCat("unix:", task->state.SchedulerSocket()), kConnectMsDefault);
    code = SubmitAndShow(&client, &guard, *task, *daemons->get(), spec);
    if (daemons->get()->Alive()) Say(&client, *task->plan, kOutputShown);
    WaitForFarewell(&client, &guard, *task->plan);
  }
  if (!file.empty()) ::unlink(file.c_str());
  return code;
}

int RunOther(Task* task) {
  const GuestPlan& plan = *task->plan;
  task->key = plan.key;
  task->addresses.scheduler = absl::StrCat(plan.host, ":", plan.port);
  if (!plan.run_file.empty()) {
    auto file = WaitForRunFile(plan.run_file, kJoinMs);
    if (!file.ok()) return Fail(file.status());
    task->key = file->key;
    task->addresses.scheduler = file->endpoint;
  }
  const std::string& endpoint = task->addresses.scheduler;
  auto own = task->request->local_addr.empty()
                 ? LocalAddressTowards(endpoint.substr(0, endpoint.rfind(':')))
                 : absl::StatusOr<std::string>(task->request->local_addr);
  if (!own.ok()) return Fail(own.status());
  task->addresses.own_host = *own;
  auto daemons = StartDaemons(*task);
  if (!daemons.ok()) return Fail(daemons.status());
  InterruptGuard guard;
  const RankSignals signals(*daemons->get(), /*pass_on=*/!plan.slurm);
  SchedulerClient client(endpoint, kConnectMsDefault, task->key);
  const int code = FollowJob(&client, &guard, *task, *daemons->get());
  if (code == kExitRequeue && !plan.run_file.empty()) ::unlink(plan.run_file.c_str());
  return code;
}

}  // namespace

std::map<std::string, std::string> ProcessEnvironment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos) out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

int RunGuest(const GuestPlan& plan, const RunRequest& request, v1::JobSpec spec) {
  // A key in the environment would be seen by every child from here on.
  ::unsetenv(kRunKeyVariable);
  SurviveUserSignals();
  for (const std::string& sentence : request.without_effect) {
    const bool used = absl::StartsWith(sentence, "--rdzv-endpoint") ||
                      absl::StartsWith(sentence, "--master-") ||
                      absl::StartsWith(sentence, "--local-addr");
    if (!used && plan.head()) Hint(absl::StrCat("holdfast: ", sentence));
  }
  spec.set_nodes(plan.nodes);
  auto* environment = spec.mutable_environment();
  for (auto it = environment->begin(); it != environment->end();) {
    const auto here = it++;
    if (IsNodeEnvironment(here->first)) environment->erase(here);
  }
  auto state = GuestState::Make(request.state, plan);
  if (!state.ok()) return Fail(state.status());
  Task task{&plan, &request, *state, "", {}};
  const int code = plan.head() ? RunHead(&task, spec) : RunOther(&task);
  state->Settle(code != kExitDone && code != kExitInterrupted);
  return code;
}

}  // namespace holdfast::cli
