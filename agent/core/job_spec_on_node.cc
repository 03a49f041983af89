// SPDX-License-Identifier: Apache-2.0
#include "agent/core/job_spec_on_node.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"

namespace holdfast::agent {
namespace {

constexpr uint32_t kGraceSDefault = 30;
// Ranks that start need the machine for themselves.
constexpr uint64_t kStandbyAfterMs = 2'000;

uint32_t WorldSize(const v1::Placement& placement) {
  uint32_t ranks = 0;
  for (const v1::NodePlacement& node : placement.nodes())
    ranks += static_cast<uint32_t>(node.ranks_size());
  return ranks;
}

int GroupRank(const v1::Placement& placement, const std::string& node) {
  for (int i = 0; i < placement.nodes_size(); ++i) {
    if (placement.nodes(i).node() == node) return i;
  }
  return -1;
}

constexpr char kMallocTunables[] = "GLIBC_TUNABLES";

void AddEnv(std::vector<std::string>* env, std::string_view key, const std::string& value) {
  env->push_back(absl::StrCat(absl::string_view(key.data(), key.size()), "=", value));
}

// A value that the job's own environment overrides.
void AddDefault(const v1::JobSpec& spec, std::string_view key, const std::string& value,
                std::vector<std::string>* env) {
  if (!spec.environment().contains(std::string(key))) AddEnv(env, key, value);
}

// What torchrun gives its workers beside ranks and sizes (torch.distributed.run, "Environment
// variables"), so that env:// and scripts that look find the same. The store is not rank 0's: every
// rank is a client (TORCHELASTIC_USE_AGENT_STORE).
void AddTorchEnv(const v1::DesiredJob& job, const NodeFacts& facts, const v1::NodePlacement& here,
                 std::vector<std::string>* env) {
  const v1::JobSpec& spec = job.spec();
  if (spec.command_size() == 0) return;
  AddEnv(env, "GROUP_WORLD_SIZE", std::to_string(job.placement().nodes_size()));
  AddEnv(env, "ROLE_WORLD_SIZE", std::to_string(WorldSize(job.placement())));
  AddEnv(env, "TORCHELASTIC_MAX_RESTARTS", std::to_string(spec.restarts_max()));
  AddDefault(spec, "ROLE_NAME", "default", env);
  AddDefault(spec, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", env);
  // Several ranks that each start a thread for every core slow each other down.
  if (here.ranks_size() > 1) AddDefault(spec, "OMP_NUM_THREADS", "1", env);
  if (facts.master_port == 0) return;
  AddEnv(env, "MASTER_PORT", std::to_string(facts.master_port));
  AddEnv(env, "TORCHELASTIC_USE_AGENT_STORE", "True");
}

std::vector<std::string> CommonEnv(const v1::DesiredJob& job, const NodeFacts& facts,
                                   const v1::NodePlacement& here) {
  std::vector<std::string> env;
  // LibTorch registers its operators in several hundred thousand small allocations before main():
  // with huge pages for them a native rank is up a sixth sooner. The user may say otherwise.
  if (job.spec().command_size() == 0)
    AddDefault(job.spec(), kMallocTunables, "glibc.malloc.hugetlb=1", &env);
  // The user's before ours: what we promise to a rank wins.
  for (const auto& [key, value] : job.spec().environment()) AddEnv(&env, key, value);
  for (const std::string& entry : facts.environment) env.push_back(entry);
  const std::string id = ToString(JobId{job.job()});
  AddEnv(&env, "WORLD_SIZE", std::to_string(WorldSize(job.placement())));
  AddEnv(&env, "LOCAL_WORLD_SIZE", std::to_string(here.ranks_size()));
  AddEnv(&env, "GROUP_RANK", std::to_string(GroupRank(job.placement(), facts.node)));
  AddEnv(&env, "MASTER_ADDR", MasterHost(job.rendezvous_address()));
  AddEnv(&env, "TORCHELASTIC_RUN_ID", id);
  AddEnv(&env, "TORCHELASTIC_RESTART_COUNT", std::to_string(job.attempt() - 1));
  AddTorchEnv(job, facts, here, &env);
  AddEnv(&env, "HOLDFAST_JOB", id);
  AddEnv(&env, "HOLDFAST_ATTEMPT", std::to_string(job.attempt()));
  AddEnv(&env, "HOLDFAST_SOCKET", facts.keeper_socket);
  AddEnv(&env, "HOLDFAST_STATE_UUID", facts.state_uuid);
  AddEnv(&env, "HOLDFAST_RESTORE", RestoreWord(job.start_point(), job.store()));
  AddEnv(&env, "HOLDFAST_STORE_DIR", job.store());
  AddEnv(&env, "HOLDFAST_SNAPSHOT_EVERY", std::to_string(job.spec().snapshot_every_steps()));
  AddEnv(&env, "HOLDFAST_PERSIST_EVERY", std::to_string(job.spec().persist_every_steps()));
  AddEnv(&env, "HOLDFAST_STEPS_LOG", facts.steps_log);
  AddEnv(&env, "HOLDFAST_CKPT", facts.ckpt_path);
  return env;
}

rank::RankSpec OneRank(const v1::RankPlacement& placed, const v1::JobSpec& spec,
                       const NodeFacts& facts) {
  rank::RankSpec out;
  out.rank = placed.rank();
  out.local = placed.local_rank();
  AddEnv(&out.env, "RANK", std::to_string(placed.rank()));
  AddEnv(&out.env, "LOCAL_RANK", std::to_string(placed.local_rank()));
  if (spec.command_size() > 0) AddEnv(&out.env, "ROLE_RANK", std::to_string(placed.rank()));
  if (!placed.device_id().empty()) {
    if (facts.simulated_devices) {
      AddEnv(&out.env, "HOLDFAST_DEVICES", placed.device_id());
    } else {
      AddEnv(&out.env, "CUDA_VISIBLE_DEVICES", std::to_string(placed.device_index()));
    }
  }
  if (spec.command_size() > 0) {
    out.args.assign(spec.command().begin(), spec.command().end());
  } else {
    out.args = {facts.worker_path, "--config", spec.trainer_config()};
  }
  return out;
}

// `python -u SCRIPT ...` or `python -u -m MODULE ...` with a standby's place in it. Empty: not a
// command that a standby can run.
std::vector<std::string> StandbyCommand(const v1::JobSpec& spec, const std::string& path) {
  const bool wanted = !spec.standby().empty() && spec.standby() != "none";
  if (!wanted || path.empty() || spec.command_size() < 2) return {};
  int script = 1;
  if (spec.command(script) == "-u") ++script;
  const bool module = script < spec.command_size() && spec.command(script) == "-m";
  const int name = module ? script + 1 : script;
  if (name >= spec.command_size() || spec.command(name).empty() || spec.command(name)[0] == '-')
    return {};
  std::vector<std::string> out = {spec.command(0), "-u", path, spec.standby()};
  out.insert(out.end(), spec.command().begin() + script, spec.command().end());
  return out;
}

absl::Status SetUser(const v1::JobSpec& spec, const NodeFacts& facts, rank::StartSpec* out) {
  if (facts.agent_uid == 0) {
    out->uid = spec.uid();
    out->gid = spec.gid();
    out->groups.assign(spec.groups().begin(), spec.groups().end());
    return absl::OkStatus();
  }
  if (spec.uid() != facts.agent_uid) {
    return absl::PermissionDeniedError(
        absl::StrCat("spec.uid: the job belongs to uid ", spec.uid(), " but the agent of node ",
                     facts.node, " runs as uid ", facts.agent_uid,
                     " and cannot become another user; run that agent as root"));
  }
  out->uid = facts.agent_uid;
  out->gid = facts.agent_gid;
  return absl::OkStatus();
}

}  // namespace

std::string MasterHost(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (address.rfind("unix:", 0) == 0 || colon == std::string::npos || colon == 0)
    return "127.0.0.1";
  if (address[0] == '[' && address[colon - 1] == ']') return address.substr(1, colon - 2);
  return address.substr(0, colon);
}

std::string EnvValue(const std::vector<std::string>& env, const std::string& key) {
  std::string value;
  for (const std::string& entry : env) {
    if (entry.size() > key.size() && entry[key.size()] == '=' &&
        entry.compare(0, key.size(), key) == 0) {
      value = entry.substr(key.size() + 1);
    }
  }
  return value;
}

const v1::NodePlacement* PlacementOn(const v1::Placement& placement, const std::string& node) {
  for (const v1::NodePlacement& candidate : placement.nodes()) {
    if (candidate.node() == node) return &candidate;
  }
  return nullptr;
}

std::string RestoreWord(const v1::StartPoint& point, const std::string& store) {
  const v1::CheckpointRef& ref = point.ref();
  switch (point.source()) {
    case v1::StartPoint::SOURCE_SNAPSHOT:
      return absl::StrCat("snapshot:", ref.step(), ".", ref.attempt());
    case v1::StartPoint::SOURCE_CHECKPOINT:
      return absl::StrCat("checkpoint:", point.store().empty() ? store : point.store(), ":",
                          ToString(CheckpointId{JobId{ref.job()}, ref.attempt(), ref.step()}));
    default:
      return "scratch";
  }
}

absl::StatusOr<rank::StartSpec> BuildStartSpec(const v1::DesiredJob& job, const NodeFacts& facts) {
  const v1::NodePlacement* here = PlacementOn(job.placement(), facts.node);
  if (here == nullptr || here->ranks_size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("placement: has no rank on node ", facts.node));
  }
  if (here->ranks_size() > kRanksPerNodeMax) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", here->ranks_size(),
                                                   " ranks on node ", facts.node, "; at most ",
                                                   kRanksPerNodeMax));
  }
  if (job.spec().command_size() == 0 && job.spec().trainer_config().empty()) {
    return absl::InvalidArgumentError("spec: neither command nor trainer_config is set");
  }
  rank::StartSpec out;
  out.job = job.job();
  out.attempt = job.attempt();
  out.world_size = WorldSize(job.placement());
  out.cwd = job.spec().working_directory().empty() ? "/" : job.spec().working_directory();
  out.log_dir = facts.log_dir;
  out.log_limit_bytes = job.spec().log_bytes_per_rank() != 0
                            ? job.spec().log_bytes_per_rank()
                            : static_cast<uint64_t>(kLogBytesPerRankDefault);
  HF_RETURN_IF_ERROR(SetUser(job.spec(), facts, &out));
  if (facts.serves_master)
    out.service = {facts.tcp_store_path, "--listen-fd", std::to_string(rank::kServiceFd)};
  out.standby = StandbyCommand(job.spec(), facts.standby_path);
  out.standby_after_ms = out.standby.empty() ? 0 : kStandbyAfterMs;
  out.env = CommonEnv(job, facts, *here);
  for (const v1::RankPlacement& placed : here->ranks())
    out.ranks.push_back(OneRank(placed, job.spec(), facts));
  return out;
}

absl::StatusOr<WantedJob> ToWanted(const v1::DesiredJob& job, const std::string& node) {
  WantedJob wanted;
  wanted.job = job.job();
  wanted.attempt = job.attempt();
  wanted.grace_ns =
      static_cast<int64_t>(job.grace_s() != 0 ? job.grace_s() : kGraceSDefault) * kNsPerSec;
  if (const v1::NodePlacement* here = PlacementOn(job.placement(), node); here != nullptr) {
    wanted.local_ranks = static_cast<uint32_t>(here->ranks_size());
    wanted.waits_for_master = job.spec().command_size() > 0 && job.master_port() == 0 &&
                              job.placement().nodes(0).node() != node;
  }
  switch (job.phase()) {
    case v1::DESIRED_PHASE_RUN:
      wanted.phase = WantedJob::kRun;
      break;
    case v1::DESIRED_PHASE_STOP:
      wanted.phase = WantedJob::kStop;
      break;
    case v1::DESIRED_PHASE_FORGET:
      wanted.phase = WantedJob::kForget;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("job ", ToString(JobId{job.job()}), ": phase ", job.phase(),
                       " is not known to this agent; is the scheduler newer?"));
  }
  switch (job.stop()) {
    case v1::STOP_KIND_TERM:
      wanted.stop = StopKind::kTerm;
      break;
    case v1::STOP_KIND_GRACEFUL:
      wanted.stop = StopKind::kGraceful;
      break;
    default:
      wanted.stop = StopKind::kKill;
      break;
  }
  if (wanted.job == 0 || wanted.attempt == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", wanted.job, " attempt ", wanted.attempt, ": both count from 1"));
  }
  return wanted;
}

}  // namespace holdfast::agent
