// SPDX-License-Identifier: Apache-2.0
#include "agent/node_job.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/kept_logs.h"
#include "agent/log_files.h"
#include "agent/master_socket.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/fence.h"

namespace holdfast::agent {
namespace {

constexpr int64_t kLeftBehindAgainNs = 5 * kNsPerMs;
constexpr int64_t kLeftBehindDirtyNs = 5 * kNsPerSec;  // past it the node is reported dirty
constexpr int64_t kLeftBehindSlowNs = 500 * kNsPerMs;
constexpr int64_t kForgetAgainNs = 50 * kNsPerMs;
constexpr size_t kStderrTailBytes = 8 << 10;

absl::Status WriteQuickly(const std::string& path, const std::string& text) {
  // Not synced: it tells a restarted agent what runs, and nothing of that survives the machine.
  const std::string temporary = path + ".tmp";
  {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", temporary));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("write ", temporary));
      done += static_cast<size_t>(n);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("rename to ", path));
  return absl::OkStatus();
}

absl::Status MakeDir(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, absl::StrCat("mkdir ", path));
  return absl::OkStatus();
}

}  // namespace

NodeJob::NodeJob(JobId id, const JobContext& context)
    : id_(id),
      context_(context),
      dir_(context.options->KeeperDir(id)),
      keeper_(context.loop,
              {context.options->keeper_binary, dir_, id.value, kRanksPerNodeMax,
               context.options->owner_fd},
              this),
      saves_(id, context.loop, context.saver, context.emit_prepared),
      alive_(std::make_shared<bool>(true)) {}

NodeJob::~NodeJob() {
  *alive_ = false;
  if (wake_timer_ != 0) context_.loop->Cancel(wake_timer_);
  FlushSteps(!AnyAlive());
}

bool NodeJob::AnyAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return entry.second.fsm.Alive(); });
}

void NodeJob::SetDesired(const v1::DesiredJob& desired) {
  desired_ = desired;
  if (!desired.store().empty()) saves_.SetStore(desired.store());
  Reconcile();
}

ObservedJob NodeJob::Observe() {
  LookForLeftBehind();
  ObservedJob out;
  out.job = id_.value;
  out.known = true;
  out.fence_attempt = fence_attempt_;
  out.started_attempt = started_attempt_;
  for (const auto& [unused, rank] : ranks_) out.ranks_alive += rank.fsm.Alive() ? 1 : 0;
  out.starting = !starting_.empty();
  out.left_behind = left_behind_;
  out.keeper_attached = attached_;
  out.keeper_busy = (keeper_.running() && !attached_) || burying_ || quitting_;
  out.keeper_retry_ns = keeper_retry_ns_;
  out.stop_reported = stop_reported_;
  return out;
}

void NodeJob::Reconcile() {
  if (!desired_.has_value()) return;
  const absl::StatusOr<WantedJob> wanted = ToWanted(*desired_, context_.options->node);
  if (!wanted.ok()) {
    if (!std::exchange(bad_order_told_, true)) spdlog::error("{}", wanted.status().ToString());
    return;
  }
  bad_order_told_ = false;
  saves_.ApplyOrders(*desired_);
  WriteControl();
  const std::shared_ptr<bool> alive = alive_;
  for (const Action& action :
       holdfast::agent::Reconcile(*wanted, Observe(), context_.loop->Now())) {
    CarryOut(action);
    if (!*alive) return;
  }
}

void NodeJob::CarryOut(const Action& action) {
  switch (action.kind) {
    case Action::kRaiseFence:
      RaiseFence(action.attempt);
      break;
    case Action::kStartKeeper:
      StartKeeper();
      break;
    case Action::kStartRanks:
      StartRanks(action.attempt);
      break;
    case Action::kStopRanks:
      StopRanks(action);
      break;
    case Action::kKillLeftBehind:
      KillLeftBehind();
      break;
    case Action::kReportStopped: {
      stop_reported_ = action.attempt;
      v1::RankEvent event;
      event.set_kind(v1::RankEvent::KIND_STOP_COMPLETE);
      *event.mutable_rank() = EmptyReport(action.attempt);
      event.set_detail(action.reason);
      spdlog::info("{}: attempt {}: {}", ToString(id_), action.attempt, action.reason);
      context_.emit(std::move(event), context_.loop->Now(), true);
      break;
    }
    case Action::kForget:
      Forget();
      break;
  }
}

void NodeJob::RaiseFence(uint64_t attempt) {
  fence_attempt_ = std::max(fence_attempt_, attempt);
  for (auto& [unused, rank] : ranks_) {
    if (rank.recorder == nullptr) continue;
    // Never lowered: an agent before this one may have known a newer attempt.
    std::atomic<uint64_t>& current = rank.recorder->control()->attempt_current;
    if (current.load(std::memory_order_acquire) < fence_attempt_)
      current.store(fence_attempt_, std::memory_order_release);
  }
  saves_.RaiseFence(fence_attempt_);
  if (store_ != nullptr && store_->attempt() < fence_attempt_) {
    store_->Close();
    store_.reset();
  }
}

void NodeJob::WriteControl() {
  for (auto& [unused, rank] : ranks_) {
    if (rank.recorder == nullptr || rank.attempt != desired_->attempt()) continue;
    rank::ControlLine* control = rank.recorder->control();
    control->newest_complete_step.store(desired_->newest_complete_step(),
                                        std::memory_order_release);
    control->save_request.store(desired_->save_requests(), std::memory_order_release);
  }
}

void NodeJob::MarkLogTimes() {
  const int64_t now_ns = context_.loop->clock()->WallNs();
  for (const auto& [number, rank] : ranks_)
    MarkLogTime(LogBase(log_dir(), number, rank.attempt), now_ns);
}

void NodeJob::Refresh() {
  keeper_.ContinueIfStopped();
  MarkLogTimes();
  Reconcile();  // a level: also what failed before is tried again
}

void NodeJob::StartKeeper() {
  absl::Status status = MakeDir(dir_, 0711);
  if (status.ok()) status = MakeDir(log_dir(), 0755);
  if (status.ok()) status = keeper_.Start();
  known_ = true;
  if (status.ok()) return;
  KeeperGone(false, std::string(status.message()));
}

void NodeJob::FailStart(uint64_t attempt, const std::string& why, bool program) {
  spdlog::error("{}: attempt {} cannot start here: {}", ToString(id_), attempt, why);
  started_attempt_ = std::max(started_attempt_, attempt);
  starting_.clear();
  master_port_ = 0;  // nobody serves it
  const v1::NodePlacement* here = PlacementOn(desired_->placement(), context_.options->node);
  for (int i = 0; here != nullptr && i < here->ranks_size(); ++i) {
    LocalRank& rank = ranks_[here->ranks(i).rank()];
    rank.rank = here->ranks(i).rank();
    if (rank.attempt != attempt) rank.Begin(attempt);
    rank.start_error = why;
    rank.start_is_program = program;
    EmitEdges(&rank, rank.fsm.StartFailed(context_.loop->Now()));
  }
}

NodeFacts NodeJob::Facts() const {
  NodeFacts facts;
  facts.node = context_.options->node;
  facts.state_uuid = *context_.state_uuid;
  facts.keeper_socket = JoinPath(dir_, "sock");
  facts.log_dir = log_dir();
  facts.steps_log = JoinPath(context_.options->JobDir(id_), "steps.jsonl");
  facts.worker_path = context_.options->worker_binary;
  facts.tcp_store_path = context_.options->tcp_store_binary;
  facts.standby_path = context_.options->standby_script;
  facts.ckpt_path = context_.options->ckpt_binary;
  facts.agent_uid = context_.options->uid;
  facts.agent_gid = context_.options->gid;
  facts.simulated_devices = context_.simulated_devices;
  facts.environment = context_.options->environment;
  return facts;
}

// Where a command's ranks find each other: here, on a fresh port, or where the first node said.
absl::Status NodeJob::OpenMaster(NodeFacts* facts, UniqueFd* socket) {
  master_port_ = 0;
  if (desired_->spec().command_size() == 0) return absl::OkStatus();
  facts->master_port = static_cast<uint16_t>(desired_->master_port());
  if (desired_->placement().nodes_size() == 0 ||
      desired_->placement().nodes(0).node() != context_.options->node)
    return absl::OkStatus();
  if (::access(facts->tcp_store_path.c_str(), X_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("the rendezvous of a command needs ",
                                           facts->tcp_store_path, "; install it again"));
  }
  HF_ASSIGN_OR_RETURN(MasterSocket master,
                      OpenMasterSocket(MasterHost(desired_->rendezvous_address()),
                                       desired_->placement().nodes_size() > 1));
  master_port_ = facts->master_port = master.port;
  facts->serves_master = true;
  *socket = std::move(master.fd);
  return absl::OkStatus();
}

absl::Status NodeJob::PrepareStart(uint64_t attempt, std::vector<UniqueFd>* descriptors) {
  NodeFacts facts = Facts();
  UniqueFd socket;
  HF_RETURN_IF_ERROR(OpenMaster(&facts, &socket));
  HF_ASSIGN_OR_RETURN(spec_, BuildStartSpec(*desired_, facts));
  HF_RETURN_IF_ERROR(MakeDir(context_.options->jobs_dir, 0755));
  HF_RETURN_IF_ERROR(MakeDir(context_.options->JobDir(id_), 0755));
  const std::string text = rank::EncodeStartSpec(spec_);
  if (text.empty()) return absl::InvalidArgumentError("command or environment hold a zero byte");
  started_ = *desired_;
  HF_RETURN_IF_ERROR(WriteQuickly(JoinPath(dir_, absl::StrCat("desired.", attempt)),
                                  started_.SerializeAsString()));
  const std::string path = JoinPath(dir_, absl::StrCat("spec.", attempt));
  HF_RETURN_IF_ERROR(WriteQuickly(path, text));
  UniqueFd spec_file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!spec_file.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  descriptors->push_back(std::move(spec_file));
  if (socket.valid()) descriptors->push_back(std::move(socket));
  const bool serves = started_.placement().nodes(0).node() == context_.options->node;
  rendezvous_ = serves ? "" : started_.rendezvous_address();
  if (serves) OpenStore(attempt, false);
  if (serves && store_ == nullptr)
    return absl::UnavailableError("the rendezvous store cannot be opened; see the agent's log");
  return absl::OkStatus();
}

void NodeJob::StartRanks(uint64_t attempt) {
  FlushSteps(true);
  std::vector<UniqueFd> descriptors;
  const absl::Status prepared = PrepareStart(attempt, &descriptors);
  if (!prepared.ok())
    return FailStart(attempt, std::string(prepared.message()), absl::IsInvalidArgument(prepared));
  HF_KILL_POINT("agent.start.spec:after");
  started_attempt_ = attempt;
  stop_ = StopState();
  stop_reported_ = 0;
  left_since_ns_ = 0;
  dirty_reason_.clear();
  forwards_.clear();
  starting_.clear();
  std::erase_if(ranks_, [this](const auto& entry) {
    return std::none_of(spec_.ranks.begin(), spec_.ranks.end(),
                        [&entry](const rank::RankSpec& r) { return r.rank == entry.first; });
  });
  for (const rank::RankSpec& placed : spec_.ranks) {
    LocalRank& rank = ranks_[placed.rank];
    rank.rank = placed.rank;
    rank.Begin(attempt);
    starting_.insert(placed.rank);
  }
  OpenStepLog();
  SetFence(FirstFenceNs());  // an old deadline is not for the new ranks
  rank::Message start;
  start.type = rank::kStart;
  start.request = kStartRequest;
  start.attempt = attempt;
  start.args[0] = attempt;
  std::vector<int> numbers;
  for (const UniqueFd& descriptor : descriptors) numbers.push_back(descriptor.get());
  keeper_.Send(start, {}, numbers);
  spdlog::info("{}: attempt {}: {} ranks ordered from the keeper", ToString(id_), attempt,
               spec_.ranks.size());
}

void NodeJob::StopRanks(const Action& action) {
  if (action.stop > stop_.kind) {
    spdlog::info("{}: stopping attempt {}: {}", ToString(id_), started_attempt_, action.reason);
  }
  BeginStop(action.stop, action.grace_ns, context_.loop->Now(), &stop_);
  StepLadder();
}

void NodeJob::StepLadder() {
  const StopStep step = NextStopStep(context_.loop->Now(), &stop_);
  if (step.set_should_stop) {
    const uint32_t reason =
        desired_->stop_reason() != 0 ? desired_->stop_reason() : rank::kStopDrain;
    for (auto& [unused, rank] : ranks_) {
      if (rank.recorder != nullptr)
        rank.recorder->control()->should_stop.store(reason, std::memory_order_release);
    }
  }
  if (step.signal != 0) {
    rank::Message message;
    message.type = rank::kSignal;
    message.attempt = started_attempt_;
    message.args[0] = static_cast<uint64_t>(step.signal);
    message.args[1] = rank::kAllRanks;
    message.args[2] = started_attempt_;
    keeper_.Send(message);
  }
  if (step.next_ns != 0) ReconcileAt(step.next_ns);
}

// A rank that SIGKILL does not end (in D state, or frozen by a v1 cgroup) keeps its devices, but
// its job goes on without them.
void NodeJob::LookForUnkillable() {
  if (stop_.first_kill_ns == 0 || !dirty_reason_.empty()) return;
  if (context_.loop->Now() - stop_.first_kill_ns < kLeftBehindDirtyNs) return;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.fsm.Alive()) continue;
    dirty_reason_ =
        absl::StrCat("rank ", number, ", process ", rank.pid, " (state ",
                     std::string(1, ReadProcessState(rank.pid)), ") does not end by SIGKILL");
    spdlog::error("{}: {}", ToString(id_), dirty_reason_);
    return;
  }
}

void NodeJob::FoundStrays(uint64_t attempt) {
  strays_ = true;
  left_behind_ = true;
  started_attempt_ = std::max(started_attempt_, attempt);  // an attempt is never started twice
}

bool NodeJob::Owns(pid_t pid) const {
  // Children of a keeper that just died are looked for elsewhere (BuryRanks).
  return burying_ || (keeper_.running() && DescendsFrom(pid, keeper_.pid()));
}

bool NodeJob::Believes(const FoundProcess& process) const {
  return (started_attempt_ != 0 && process.uid == spec_.uid) || IsOurs(process);
}

std::vector<FoundProcess> NodeJob::Strays() const {
  std::vector<FoundProcess> strays = FindKeepersAndRanks(dir_ + "/");
  std::erase_if(strays, [this](const FoundProcess& process) {
    return Owns(process.pid) || !Believes(process);
  });
  return strays;
}

void NodeJob::LookForStrays() {
  const std::vector<FoundProcess> strays = Strays();
  strays_ = !strays.empty() || AnyDying();
  left_behind_ = strays_;
  if (!strays_) {
    spdlog::info("{}: no process of an unknown keeper is left", ToString(id_));
    dirty_reason_.clear();
    return;
  }
  if (!dirty_reason_.empty() || strays.empty()) return;
  dirty_reason_ = absl::StrCat("process ", strays[0].pid, " (", strays[0].comm,
                               ") belongs to no keeper this agent knows: was ", dir_, " removed?");
  spdlog::error("{}: {}", ToString(id_), dirty_reason_);
}

bool NodeJob::AnyDying() {
  std::erase_if(dying_, [](const UniqueFd& pidfd) { return PidfdExited(pidfd); });
  return !dying_.empty();
}

// The keeper kills what its ranks leave; what has no keeper here is killed by us.
void NodeJob::KillLeftBehind() {
  if (strays_) {
    for (const FoundProcess& process : Strays()) {
      spdlog::warn("{}: process {} ({}) of an unknown keeper: killed", ToString(id_), process.pid,
                   process.comm);
      if (UniqueFd pidfd = KillFound(process); pidfd.valid()) dying_.push_back(std::move(pidfd));
    }
  }
  const bool slow = !strays_ && !dirty_reason_.empty();
  ReconcileAt(context_.loop->Now() + (slow ? kLeftBehindSlowNs : kLeftBehindAgainNs));
}

void NodeJob::LookForLeftBehind() {
  left_behind_ = false;
  LookForUnkillable();
  if (strays_) return LookForStrays();
  if (!attached_ || AnyAlive() || !starting_.empty()) return;
  std::vector<pid_t> children;
  // (A standby is not of the attempt: it holds nothing of it.)
  if (std::optional<std::vector<pid_t>> known = ReadChildren(keeper_.pid()); known.has_value()) {
    children = *std::move(known);
  } else {
    for (const FoundProcess& found : FindRankProcesses(JoinPath(dir_, "sock"), ""))
      children.push_back(found.pid);
  }
  std::erase_if(children, [this](pid_t pid) { return standbys_.count(pid) != 0; });
  left_behind_ = !children.empty();
  if (!left_behind_) {
    left_since_ns_ = 0;
    dirty_reason_.clear();
    return;
  }
  if (left_since_ns_ == 0) left_since_ns_ = context_.loop->Now();
  if (context_.loop->Now() - left_since_ns_ < kLeftBehindDirtyNs || !dirty_reason_.empty()) return;
  dirty_reason_ =
      absl::StrCat("process ", children[0], " (", ReadComm(children[0]), ", state ",
                   std::string(1, ReadProcessState(children[0])), ") does not end by SIGKILL");
  spdlog::error("{}: {}", ToString(id_), dirty_reason_);
}

void NodeJob::Forget() {
  if (saves_.busy()) return ReconcileAt(context_.loop->Now() + kForgetAgainNs);
  FlushSteps(true);
  if (!keeper_.running()) return RemoveDirectory();
  quitting_ = true;
  rank::Message message;
  message.type = rank::kDropArenas;
  keeper_.Send(message);
  message.type = rank::kQuit;
  message.request = kQuitRequest;
  keeper_.Send(message);
}

std::string NodeJob::log_dir() const {
  return removed_ ? KeptLogDir(*context_.options, id_) : JoinPath(dir_, "logs");
}

void NodeJob::RemoveDirectory() {
  if (store_ != nullptr) store_->Close();
  store_.reset();
  MarkLogTimes();
  const absl::Status kept = KeepLogs(log_dir(), *context_.options, id_);
  if (!kept.ok()) spdlog::error("{}: its logs are lost: {}", ToString(id_), kept.ToString());
  std::error_code error;
  std::filesystem::remove_all(dir_, error);
  if (error) spdlog::error("{}: {} cannot be removed: {}", ToString(id_), dir_, error.message());
  removed_ = true;
  spdlog::info("{}: forgotten", ToString(id_));
  context_.forgotten(id_.value);
}

void NodeJob::ReconcileAt(int64_t at_ns) {
  if (wake_timer_ != 0 && wake_at_ns_ <= at_ns) return;
  if (wake_timer_ != 0) context_.loop->Cancel(wake_timer_);
  wake_at_ns_ = at_ns;
  wake_timer_ = context_.loop->At(at_ns, [this] {
    wake_timer_ = 0;
    Reconcile();
  });
}

void NodeJob::OpenStepLog() {
  step_log_.reset();
  if (ranks_.count(0) == 0) return;
  absl::StatusOr<std::unique_ptr<StepLog>> log = StepLog::Open(Facts().steps_log);
  if (log.ok()) {
    step_log_ = *std::move(log);
  } else {
    spdlog::error("{}: no step log: {}", ToString(id_), log.status().ToString());
  }
}

void NodeJob::FlushSteps(bool last) {
  const auto rank = ranks_.find(0);
  if (step_log_ == nullptr || rank == ranks_.end() || rank->second.recorder == nullptr) return;
  const uint64_t lost = step_log_->lost_steps();
  const absl::Status status = step_log_->Append(rank->second.attempt, *rank->second.recorder, last);
  if (step_log_->lost_steps() != lost) {
    spdlog::error("{}: {} steps left the recorder before they were logged", ToString(id_),
                  step_log_->lost_steps() - lost);
  }
  const std::string error = status.ok() ? "" : status.ToString();
  if (error != step_error_ && !error.empty())
    spdlog::error("{}: step log: {}", ToString(id_), error);
  step_error_ = error;
}

void NodeJob::Poll(bool slow) {
  const int64_t now = context_.loop->Now();
  FlushSteps(false);
  for (auto& [unused, rank] : ranks_) {
    if (!rank.fsm.Alive()) continue;
    if (slow) EmitEdges(&rank, rank.fsm.FrozenSeen(rank.LookFrozen(), now));
    if (const int64_t due = rank.fsm.PendingStopAtNs(); due != 0 && due <= now) {
      EmitEdges(&rank, rank.fsm.Tick(now, IsTraced(rank.pid)));
    }
    if (rank.first_step_told || rank.recorder == nullptr) continue;
    rank::Progress progress;
    if (!rank.recorder->ReadProgress(&progress) || progress.first_step_done_ns == 0) continue;
    rank.first_step_told = true;
    Emit(v1::RankEvent::KIND_FIRST_STEP, &rank, static_cast<int64_t>(progress.first_step_done_ns));
  }
}

v1::RankReport NodeJob::EmptyReport(uint64_t attempt) const {
  v1::RankReport report;
  report.set_job(id_.value);
  report.set_attempt(attempt);
  return report;
}

void NodeJob::Emit(v1::RankEvent::Kind kind, const LocalRank* rank, int64_t at_ns,
                   const std::string& detail) {
  v1::RankEvent event;
  event.set_kind(kind);
  *event.mutable_rank() = rank == nullptr ? EmptyReport(started_attempt_)
                                          : rank->Report(id_.value, context_.loop->Now());
  event.set_detail(detail);
  if (kind == v1::RankEvent::KIND_EXITED && rank != nullptr && rank->fsm.exit_code() != 0) {
    event.set_stderr_tail(
        ToUtf8(LogTail(LogBase(log_dir(), rank->rank, rank->attempt), kStderrTailBytes)));
  }
  // The other nodes start when they know where this one's ranks meet: not only at the next beat.
  const bool with_level = kind == v1::RankEvent::KIND_STARTED && master_port_ != 0 &&
                          started_.placement().nodes_size() > 1;
  context_.emit(std::move(event), at_ns, with_level);
}

void NodeJob::EmitEdges(LocalRank* rank, const std::vector<RankEdge>& edges) {
  for (const RankEdge& edge : edges) {
    switch (edge.kind) {
      case RankEdge::kStarted:
        Emit(v1::RankEvent::KIND_STARTED, rank, edge.at_ns);
        break;
      case RankEdge::kStopped:
        Emit(v1::RankEvent::KIND_STOPPED, rank, edge.at_ns,
             rank->fsm.cause() == StopCause::kFrozen ? "frozen by its cgroup"
                                                     : "stopped by a signal");
        break;
      case RankEdge::kContinued:
        Emit(v1::RankEvent::KIND_CONTINUED, rank, edge.at_ns);
        break;
      case RankEdge::kExited:
        rank->ClassifyExit();
        Emit(v1::RankEvent::KIND_EXITED, rank, edge.at_ns,
             absl::StrCat(DescribeExit(rank->fsm.exit_code()),
                          rank->oom_killed ? ", out of memory" : ""));
        if (rank->fsm.exit_code() != 0) KeepEvidence(*rank);
        break;
      case RankEdge::kStartFailed:
        Emit(v1::RankEvent::KIND_START_FAILED, rank, edge.at_ns, rank->start_error);
        break;
    }
  }
}

void NodeJob::KeepEvidence(const LocalRank& rank) {
  // What we stopped ourselves is no evidence; what failed after the first failure is its victim.
  if (stop_.kind != StopKind::kNone || fence_attempt_ > rank.attempt ||
      evidence_attempt_ == rank.attempt)
    return;
  evidence_attempt_ = rank.attempt;
  const std::string directory =
      JoinPath(context_.options->JobDir(id_), absl::StrCat("failure.", rank.attempt));
  const std::string note = absl::StrCat("job ", ToString(id_), " attempt ", rank.attempt, " rank ",
                                        rank.rank, " on node ", context_.options->node, ": ",
                                        DescribeExit(rank.fsm.exit_code()), "\n");
  const std::string base = LogBase(log_dir(), rank.rank, rank.attempt);
  const bool taken = context_.files->Push([base, directory, rank = rank.rank, note] {
    const absl::Status kept = KeepFailure(base, directory, rank, note);
    if (!kept.ok()) spdlog::error("first failure not kept in {}: {}", directory, kept.ToString());
  });
  if (!taken)
    spdlog::error("{}: first failure not kept in {}: too much waits already", ToString(id_),
                  directory);
}

bool NodeJob::FencedByWitness() const {
  return proto::EffectiveFence(started_.spec()) == v1::FENCE_MODE_WITNESS;
}

bool NodeJob::WantsFence() const { return FencedByWitness() && AnyAlive(); }

// Also an agent that dies before its next beat must leave a deadline behind. Nobody has answered
// yet after a start of the agent: the order itself is a word from the scheduler.
int64_t NodeJob::FirstFenceNs() const {
  if (!FencedByWitness()) return 0;
  const int64_t from_now_ns = context_.loop->Now() + fence_ms() * kNsPerMs;
  return context_.fence_deadline(fence_ms()).value_or(from_now_ns);
}

int64_t NodeJob::fence_ms() const {
  return started_.spec().fence_ms() != 0 ? started_.spec().fence_ms() : kFenceMsDefault;
}

void NodeJob::SetFence(int64_t deadline_ns) {
  rank::Message message;
  message.type = rank::kFence;
  message.args[0] = static_cast<uint64_t>(deadline_ns);
  keeper_.Send(message);  // also written into every recorder by the keeper
}

void NodeJob::AddWatched(std::vector<WatchedRank>* out) const {
  for (const auto& [unused, rank] : ranks_) {
    if (!rank.fsm.Alive() || rank.pid == 0) continue;
    WatchedRank watched{id_.value, rank.attempt, rank.rank, rank.pid, "", 0};
    watched.log_base = LogBase(log_dir(), rank.rank, rank.attempt);
    rank::Progress progress;
    if (rank.recorder != nullptr && rank.recorder->ReadProgress(&progress))
      watched.step = progress.step;
    out->push_back(std::move(watched));
  }
}

void NodeJob::AddReport(int64_t now_ns, v1::NodeReport* out) const {
  v1::JobOnNode* job = out->add_jobs();
  job->set_job(id_.value);
  job->set_attempt(started_attempt_);
  for (const auto& [unused, rank] : ranks_) {
    v1::RankReport* report = job->add_ranks();
    *report = rank.Report(id_.value, now_ns);
    if (!rank.fsm.Alive()) continue;
    if (auto quiet = context_.activity->QuietOf(id_.value, rank.attempt, rank.rank))
      *report->mutable_quiet() = *std::move(quiet);
  }
  job->set_keeper_alive(attached_);
  job->set_adopting(keeper_.running() && !attached_);
  const bool unclear = (keeper_.running() && !attached_) || burying_;
  job->set_clean(!AnyAlive() && starting_.empty() && !left_behind_ && !unclear);
  job->set_dirty_reason(dirty_reason_.empty() ? keeper_error_ : dirty_reason_);
  job->set_commits_written(saves_.commits_written());
  job->set_master_port(master_port_);
}

void NodeJob::AddPrepared(size_t* bytes_left, v1::NodeReport* out) const {
  const uint64_t attempt = desired_.has_value() ? desired_->attempt() : 0;
  saves_.AddPrepared(attempt, desired_.has_value() ? desired_->prepared_ack_step() : 0, bytes_left,
                     out);
}

bool NodeJob::LogIsFinal(uint32_t rank, uint64_t attempt, std::string* why) const {
  const auto it = ranks_.find(rank);
  if (attempt > started_attempt_) return false;
  if (attempt < started_attempt_ || it == ranks_.end()) {
    *why = absl::StrCat("attempt ", attempt, " is over");
    return true;
  }
  if (starting_.count(rank) != 0 || it->second.fsm.Alive()) return false;
  *why = it->second.fsm.phase() == RankPhase::kExited ? DescribeExit(it->second.fsm.exit_code())
                                                      : "not running";
  return true;
}

}  // namespace holdfast::agent
