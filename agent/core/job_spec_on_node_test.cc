// SPDX-License-Identifier: Apache-2.0
#include "agent/core/job_spec_on_node.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace holdfast::agent {
namespace {

v1::DesiredJob Job() {
  v1::DesiredJob job;
  job.set_job(42);
  job.set_attempt(3);
  job.set_phase(v1::DESIRED_PHASE_RUN);
  job.set_store("/store");
  job.set_rendezvous_address("10.0.0.1:7000");
  job.mutable_spec()->add_command("train");
  job.mutable_spec()->add_command("--fast");
  job.mutable_spec()->set_working_directory("/data");
  job.mutable_spec()->set_snapshot_every_steps(1);
  job.mutable_spec()->set_persist_every_steps(5);
  (*job.mutable_spec()->mutable_environment())["RANK"] = "tricked";
  (*job.mutable_spec()->mutable_environment())["MY"] = "own";
  for (uint32_t n = 0; n < 2; ++n) {
    v1::NodePlacement* node = job.mutable_placement()->add_nodes();
    node->set_node("n" + std::to_string(n));
    for (uint32_t local = 0; local < 2; ++local) {
      v1::RankPlacement* rank = node->add_ranks();
      rank->set_rank(2 * n + local);
      rank->set_local_rank(local);
      rank->set_device_id("n" + std::to_string(n) + "-gpu" + std::to_string(local));
      rank->set_device_index(local);
    }
  }
  return job;
}

NodeFacts Facts() {
  NodeFacts facts;
  facts.node = "n1";
  facts.state_uuid = "uuid";
  facts.keeper_socket = "/s/keepers/j-42/sock";
  facts.log_dir = "/s/keepers/j-42/logs";
  facts.steps_log = "/jobs/j-42/steps.jsonl";
  facts.worker_path = "/bin/holdfast-worker";
  facts.ckpt_path = "/bin/holdfast-ckpt";
  facts.simulated_devices = true;
  return facts;
}

std::string Value(const rank::StartSpec& spec, size_t rank, const std::string& key) {
  std::vector<std::string> env = spec.env;
  env.insert(env.end(), spec.ranks[rank].env.begin(), spec.ranks[rank].env.end());
  return EnvValue(env, key);
}

TEST(JobSpecOnNode, TakesItsPartOfThePlacement) {
  const absl::StatusOr<rank::StartSpec> spec = BuildStartSpec(Job(), Facts());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->world_size, 4u);
  ASSERT_EQ(spec->ranks.size(), 2u);
  EXPECT_EQ(spec->ranks[1].rank, 3u);
  EXPECT_EQ(spec->ranks[0].args, (std::vector<std::string>{"train", "--fast"}));
  EXPECT_EQ(spec->cwd, "/data");
  const std::pair<const char*, const char*> expected[] = {
      {"RANK", "3"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"TORCHELASTIC_RUN_ID", "j-42"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"HOLDFAST_JOB", "j-42"},
      {"HOLDFAST_ATTEMPT", "3"},
      {"HOLDFAST_SOCKET", "/s/keepers/j-42/sock"},
      {"HOLDFAST_STATE_UUID", "uuid"},
      {"HOLDFAST_RESTORE", "scratch"},
      {"HOLDFAST_STORE_DIR", "/store"},
      {"HOLDFAST_SNAPSHOT_EVERY", "1"},
      {"HOLDFAST_PERSIST_EVERY", "5"},
      {"HOLDFAST_STEPS_LOG", "/jobs/j-42/steps.jsonl"},
      {"HOLDFAST_CKPT", "/bin/holdfast-ckpt"},
      {"HOLDFAST_DEVICES", "n1-gpu1"},
      {"MY", "own"},
      {"CUDA_VISIBLE_DEVICES", ""},
      {"MASTER_PORT", ""},
      {"OMP_NUM_THREADS", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_WORLD_SIZE", "4"},
      {"ROLE_RANK", "3"},
      {"ROLE_NAME", "default"},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
  };
  for (const auto& [key, value] : expected) EXPECT_EQ(Value(*spec, 1, key), value) << key;
}

TEST(JobSpecOnNode, ACommandMeetsWhereItsFirstNodeServes) {
  NodeFacts facts = Facts();
  facts.master_port = 45678;
  const absl::StatusOr<rank::StartSpec> client = BuildStartSpec(Job(), facts);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(Value(*client, 0, "MASTER_PORT"), "45678");
  EXPECT_EQ(Value(*client, 0, "TORCHELASTIC_USE_AGENT_STORE"), "True");
  EXPECT_TRUE(client->service.empty());
  facts.serves_master = true;
  facts.tcp_store_path = "/bin/holdfast-tcp-store";
  EXPECT_EQ(BuildStartSpec(Job(), facts)->service,
            (std::vector<std::string>{"/bin/holdfast-tcp-store", "--listen-fd", "3"}));
}

TEST(JobSpecOnNode, AStandbyRunsWhatTheCommandWouldRun) {
  NodeFacts facts = Facts();
  facts.standby_path = "/bin/holdfast-standby.py";
  const auto standby = [&](const std::vector<std::string>& command, const std::string& modules) {
    v1::DesiredJob job = Job();
    job.mutable_spec()->clear_command();
    for (const std::string& word : command) job.mutable_spec()->add_command(word);
    job.mutable_spec()->set_standby(modules);
    return BuildStartSpec(job, facts)->standby;
  };
  const std::vector<std::string> script = {"python", "-u",   "/bin/holdfast-standby.py",
                                           "auto",   "t.py", "-x"};
  EXPECT_EQ(standby({"python", "-u", "t.py", "-x"}, "auto"), script);
  EXPECT_EQ(standby({"python", "t.py", "-x"}, "auto"), script);
  EXPECT_EQ(standby({"python", "-u", "-m", "pkg", "a"}, "torch"),
            (std::vector<std::string>{"python", "-u", "/bin/holdfast-standby.py", "torch", "-m",
                                      "pkg", "a"}));
  for (const char* none : {"", "none"}) EXPECT_TRUE(standby({"python", "t.py"}, none).empty());
  // Flags of the interpreter that a running one cannot take on, and nothing to run.
  EXPECT_TRUE(standby({"python", "-O", "t.py"}, "auto").empty());
  EXPECT_TRUE(standby({"python", "-c", "pass"}, "auto").empty());
  EXPECT_TRUE(standby({"python", "-u"}, "auto").empty());
  EXPECT_TRUE(standby({"python"}, "auto").empty());
  facts.standby_path.clear();
  EXPECT_TRUE(standby({"python", "t.py"}, "auto").empty());
}

TEST(JobSpecOnNode, TheUsersThreadsAndRoleWin) {
  v1::DesiredJob job = Job();
  (*job.mutable_spec()->mutable_environment())["OMP_NUM_THREADS"] = "7";
  (*job.mutable_spec()->mutable_environment())["ROLE_NAME"] = "actor";
  const absl::StatusOr<rank::StartSpec> spec = BuildStartSpec(job, Facts());
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(Value(*spec, 0, "OMP_NUM_THREADS"), "7");
  EXPECT_EQ(Value(*spec, 0, "ROLE_NAME"), "actor");
}

TEST(JobSpecOnNode, OnlyAJobOnSeveralNodesWaitsForItsFirst) {
  v1::DesiredJob job = Job();
  job.set_phase(v1::DESIRED_PHASE_RUN);
  EXPECT_TRUE(ToWanted(job, "n1")->waits_for_master);
  EXPECT_FALSE(ToWanted(job, job.placement().nodes(0).node())->waits_for_master);
  job.set_master_port(45678);
  EXPECT_FALSE(ToWanted(job, "n1")->waits_for_master);
  job.set_master_port(0);
  job.mutable_spec()->clear_command();
  job.mutable_spec()->set_trainer_config("/data/run.yaml");
  EXPECT_FALSE(ToWanted(job, "n1")->waits_for_master) << "the trainer meets through its keeper";
}

TEST(JobSpecOnNode, RealDevicesAndTheNativeWorker) {
  v1::DesiredJob job = Job();
  job.mutable_spec()->clear_command();
  job.mutable_spec()->set_trainer_config("/data/run.yaml");
  job.set_rendezvous_address("unix:/s/agent.sock");
  NodeFacts facts = Facts();
  facts.simulated_devices = false;
  const absl::StatusOr<rank::StartSpec> spec = BuildStartSpec(job, facts);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->ranks[0].args,
            (std::vector<std::string>{"/bin/holdfast-worker", "--config", "/data/run.yaml"}));
  EXPECT_EQ(Value(*spec, 1, "CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(Value(*spec, 1, "MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(EnvValue(spec->env, "GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1");
  (*job.mutable_spec()->mutable_environment())["GLIBC_TUNABLES"] = "mine";
  EXPECT_EQ(EnvValue(BuildStartSpec(job, facts)->env, "GLIBC_TUNABLES"), "mine");
}

TEST(JobSpecOnNode, TheMasterIsTheHostOfTheFirstNode) {
  EXPECT_EQ(MasterHost("10.0.0.1:7070"), "10.0.0.1");
  EXPECT_EQ(MasterHost("[::1]:7070"), "::1") << "what getaddrinfo and torch take has no brackets";
  EXPECT_EQ(MasterHost("n0.cluster:7070"), "n0.cluster");
  EXPECT_EQ(MasterHost("unix:/run/agent.sock"), "127.0.0.1");
  EXPECT_EQ(MasterHost(""), "127.0.0.1");
}

TEST(JobSpecOnNode, RestoreWords) {
  v1::StartPoint point;
  EXPECT_EQ(RestoreWord(point, "/store"), "scratch");
  point.mutable_ref()->set_job(7);
  point.mutable_ref()->set_attempt(2);
  point.mutable_ref()->set_step(100);
  point.set_source(v1::StartPoint::SOURCE_SNAPSHOT);
  EXPECT_EQ(RestoreWord(point, "/store"), "snapshot:100.2");
  point.set_source(v1::StartPoint::SOURCE_CHECKPOINT);
  EXPECT_EQ(RestoreWord(point, "/store"), "checkpoint:/store:j-7@100.2");
}

TEST(JobSpecOnNode, UsersByPrivilege) {
  v1::DesiredJob job = Job();
  job.mutable_spec()->set_uid(1000);
  job.mutable_spec()->set_gid(1000);
  job.mutable_spec()->add_groups(44);
  NodeFacts facts = Facts();
  const absl::StatusOr<rank::StartSpec> as_root = BuildStartSpec(job, facts);
  ASSERT_TRUE(as_root.ok());
  EXPECT_EQ(as_root->uid, 1000u);
  EXPECT_EQ(as_root->groups, std::vector<uint32_t>{44});
  facts.agent_uid = 1001;
  EXPECT_TRUE(absl::IsPermissionDenied(BuildStartSpec(job, facts).status()));
  facts.agent_uid = 1000;
  EXPECT_TRUE(BuildStartSpec(job, facts).ok());
}

TEST(JobSpecOnNode, Refusals) {
  NodeFacts facts = Facts();
  facts.node = "n9";
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStartSpec(Job(), facts).status()));
  v1::DesiredJob job = Job();
  job.mutable_spec()->clear_command();
  EXPECT_TRUE(absl::IsInvalidArgument(BuildStartSpec(job, Facts()).status()));
  job.set_phase(v1::DESIRED_PHASE_UNSPECIFIED);
  EXPECT_TRUE(absl::IsInvalidArgument(ToWanted(job, "n1").status()));
  job = Job();
  job.set_attempt(0);
  EXPECT_TRUE(absl::IsInvalidArgument(ToWanted(job, "n1").status()));
}

TEST(JobSpecOnNode, WantedWords) {
  v1::DesiredJob job = Job();
  job.set_phase(v1::DESIRED_PHASE_STOP);
  job.set_stop(v1::STOP_KIND_GRACEFUL);
  job.set_grace_s(7);
  const absl::StatusOr<WantedJob> wanted = ToWanted(job, "n1");
  ASSERT_TRUE(wanted.ok());
  EXPECT_EQ(wanted->phase, WantedJob::kStop);
  EXPECT_EQ(wanted->stop, StopKind::kGraceful);
  EXPECT_EQ(wanted->grace_ns, 7 * kNsPerSec);
  EXPECT_EQ(wanted->local_ranks, 2u);
}

}  // namespace
}  // namespace holdfast::agent
