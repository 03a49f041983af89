// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/clock.h"
#include "cli/guest/network.h"
#include "cli/guest/plan.h"
#include "cli/guest/run_file.h"
#include "cli/guest/watch.h"

namespace holdfast::cli {
namespace {

using ::testing::HasSubstr;

const std::string kKey(64, 'a');

std::map<std::string, std::string> Step() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NODELIST", "gpu[07-09]"},
          {"SLURMD_NODENAME", "gpu08"},
          {"SLURM_SUBMIT_DIR", "/shared/run"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}};
}

RunRequest Asked(uint32_t low, uint32_t high) {
  RunRequest request;
  request.nodes_min = low;
  request.nodes_max = high;
  return request;
}

GuestPlan Planned(const std::map<std::string, std::string>& environment,
                  const RunRequest& request) {
  const auto plan = PlanGuest(environment, "/here", request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan.ok() && plan->has_value());
  return plan.ok() && plan->has_value() ? **plan : GuestPlan();
}

std::string Refused(const std::map<std::string, std::string>& environment,
                    const RunRequest& request) {
  const auto plan = PlanGuest(environment, "/here", request);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(GuestPlan, AStepOfSeveralNodesIsOneRun) {
  const GuestPlan plan = Planned(Step(), RunRequest());
  EXPECT_TRUE(plan.slurm);
  EXPECT_EQ(plan.slurm_job, 1234u);
  EXPECT_EQ(plan.nodes, 3u);
  EXPECT_EQ(plan.tasks, 3u);
  EXPECT_EQ(plan.node_id, 1u);
  EXPECT_FALSE(plan.head());
  EXPECT_EQ(plan.node, "gpu08");
  EXPECT_EQ(plan.host, "") << "the first task tells it";
  EXPECT_EQ(plan.port, PortOfStep(1234, 2));
  EXPECT_EQ(plan.run_file, "/shared/run/.holdfast-run-1234.2.0");
  EXPECT_EQ(plan.launch_address, "10.0.0.7");
}

TEST(GuestPlan, ARequeuedJobMeetsInAFileOfItsOwn) {
  auto environment = Step();
  environment["SLURM_RESTART_COUNT"] = "2";
  environment["SLURM_SUBMIT_DIR"] = "";
  EXPECT_EQ(Planned(environment, RunRequest()).run_file, "/here/.holdfast-run-1234.2.2");
  RunRequest request;
  request.shared_dir = "/scratch";
  EXPECT_EQ(Planned(environment, request).run_file, "/scratch/.holdfast-run-1234.2.2");
}

TEST(GuestPlan, NodesBeyondTheJobsAreSpare) {
  for (const RunRequest& request : {Asked(2, 2), Asked(2, 3)}) {
    const GuestPlan plan = Planned(Step(), request);
    EXPECT_EQ(plan.nodes, 2u);
    EXPECT_EQ(plan.tasks, 3u);
  }
  EXPECT_THAT(Refused(Step(), Asked(4, 4)),
              HasSubstr("--nnodes: \"4\" is more than the 3 node(s)"));
}

TEST(GuestPlan, TheKeyOfTheEnvironmentNeedsNoFile) {
  auto environment = Step();
  environment[kRunKeyVariable] = kKey;
  const GuestPlan plan = Planned(environment, RunRequest());
  EXPECT_EQ(plan.key, kKey);
  EXPECT_EQ(plan.run_file, "");
  EXPECT_EQ(plan.host, "gpu07");
  environment[kRunKeyVariable] = "short";
  EXPECT_THAT(Refused(environment, RunRequest()), HasSubstr("HOLDFAST_RUN_KEY"));
}

TEST(GuestPlan, TorchrunsEndpointIsTaken) {
  RunRequest request;
  request.rdzv_endpoint = "gpu07:29501";
  GuestPlan plan = Planned(Step(), request);
  EXPECT_EQ(plan.host, "gpu07");
  EXPECT_EQ(plan.port, 29'501);
  request.rdzv_endpoint = "gpu07";
  EXPECT_EQ(Planned(Step(), request).port, PortOfStep(1234, 2));
  request.rdzv_endpoint = "";
  request.master_addr = "10.0.0.7";
  request.master_port = "29502";
  plan = Planned(Step(), request);
  EXPECT_EQ(plan.host, "10.0.0.7");
  EXPECT_EQ(plan.port, 29'502);
  request.rdzv_endpoint = "gpu07:0";
  EXPECT_THAT(Refused(Step(), request), HasSubstr("--rdzv-endpoint: \"gpu07:0\""));
}

TEST(GuestPlan, OneMachineStaysOneMachine) {
  const auto none = [](const std::map<std::string, std::string>& environment,
                       const RunRequest& request) {
    const auto plan = PlanGuest(environment, "/here", request);
    return plan.ok() && !plan->has_value();
  };
  EXPECT_TRUE(none({}, RunRequest()));
  EXPECT_TRUE(none({}, Asked(1, 1)));
  EXPECT_TRUE(none(Step(), Asked(1, 1))) << "said by hand";
  auto batch = Step();
  batch.erase("SLURM_STEP_ID");
  EXPECT_TRUE(none(batch, RunRequest())) << "a batch script is no step";
  auto alone = Step();
  alone["SLURM_STEP_NUM_NODES"] = alone["SLURM_STEP_NUM_TASKS"] = "1";
  alone["SLURM_NODEID"] = "0";
  EXPECT_TRUE(none(alone, RunRequest()));
}

TEST(GuestPlan, EachNodeNeedsOneTask) {
  auto environment = Step();
  environment["SLURM_STEP_NUM_TASKS"] = "24";
  EXPECT_THAT(Refused(environment, RunRequest()),
              HasSubstr("SLURM_STEP_NUM_TASKS: \"24\" is not the 3"));
  environment["SLURM_STEP_NUM_TASKS"] = "x";
  EXPECT_THAT(Refused(environment, RunRequest()), HasSubstr("SLURM_STEP_NUM_TASKS: \"x\""));
}

TEST(GuestPlan, PodsNeedRankEndpointAndKey) {
  RunRequest request = Asked(2, 11);
  EXPECT_THAT(Refused({}, request), HasSubstr("--nnodes: \"2\" is more than this machine"));
  request.rdzv_endpoint = "train-0.train:29400";
  request.node_rank = 7;
  EXPECT_THAT(Refused({}, request), HasSubstr("HOLDFAST_RUN_KEY is not set"));
  const GuestPlan plan = Planned({{kRunKeyVariable, kKey}}, request);
  EXPECT_FALSE(plan.slurm);
  EXPECT_EQ(plan.nodes, 2u);
  EXPECT_EQ(plan.tasks, 11u);
  EXPECT_EQ(plan.node, "node07") << "names sort as ranks do";
  EXPECT_EQ(plan.host, "train-0.train");
  EXPECT_EQ(plan.port, 29'400);
  EXPECT_EQ(plan.run_file, "");
  request.node_rank = 11;
  EXPECT_THAT(Refused({{kRunKeyVariable, kKey}}, request), HasSubstr("--node-rank: \"11\""));
}

TEST(GuestPlan, HostListsOfSlurm) {
  EXPECT_EQ(FirstHost("n1"), "n1");
  EXPECT_EQ(FirstHost("n1,n2"), "n1");
  EXPECT_EQ(FirstHost("n[1-3]"), "n1");
  EXPECT_EQ(FirstHost("gpu[017-019,22],login1"), "gpu017");
  EXPECT_EQ(FirstHost("a,n[1-3]"), "a");
  EXPECT_EQ(FirstHost("rack[2,4]-gpu,x"), "rack2-gpu");
  EXPECT_EQ(FirstHost("n[1-3"), "");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(GuestPlan, PortsOfStepsAreInTheirRange) {
  for (const uint64_t job : {0ull, 1ull, 9'999ull, 10'000ull, 4'294'967'294ull}) {
    for (const uint64_t step : {0ull, 1ull, 99'999ull}) {
      EXPECT_GE(PortOfStep(job, step), kStepPortFirst);
      EXPECT_LT(PortOfStep(job, step), kStepPortFirst + kStepPorts);
    }
  }
  EXPECT_NE(PortOfStep(7, 0), PortOfStep(7, 1));
  EXPECT_NE(PortOfStep(7, 0), PortOfStep(8, 0));
}

TEST(GuestPlan, Endpoints) {
  std::string host;
  uint16_t port = 7;
  EXPECT_TRUE(SplitEndpoint("-f", "[fd00::1]:80", &host, &port).ok());
  EXPECT_EQ(host, "[fd00::1]");
  EXPECT_EQ(port, 80);
  EXPECT_TRUE(SplitEndpoint("-f", "[fd00::1]", &host, &port).ok());
  EXPECT_EQ(port, 80) << "left as it is";
  for (const char* bad : {"", ":80", "a:b", "a:65536", "fd00::1:80", "a:"})
    EXPECT_FALSE(SplitEndpoint("-f", bad, &host, &port).ok()) << bad;
}

TEST(GuestNetwork, LoopbackIsTakenWhereItIsAskedFor) {
  EXPECT_EQ(LocalAddressTowards("127.0.0.1").value(), "127.0.0.1");
  GuestPlan plan;
  plan.host = "127.0.0.1";
  EXPECT_EQ(ListenAddress(plan, "").value(), "127.0.0.1");
  EXPECT_EQ(ListenAddress(plan, "10.1.2.3").value(), "10.1.2.3");
  EXPECT_FALSE(LocalAddressTowards("no-such-host.invalid").ok());
}

class RunFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/hf-guest-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/.holdfast-run-1.0.0";
  }
  void TearDown() override {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  std::string directory_, path_;
};

TEST_F(RunFileTest, TellsKeyAndEndpointToThisUserAlone) {
  EXPECT_EQ(ReadRunFile(path_).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteRunFile(path_, {kKey, "10.0.0.7:20007"}).ok());
  struct stat st {};
  ASSERT_EQ(::stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  const auto read = WaitForRunFile(path_, 0);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->key, kKey);
  EXPECT_EQ(read->endpoint, "10.0.0.7:20007");
  ::chmod(path_.c_str(), 0644);
  EXPECT_EQ(WaitForRunFile(path_, 60'000).status().code(), absl::StatusCode::kFailedPrecondition)
      << "at once, not at the end of the wait";
}

TEST_F(RunFileTest, HalfAFileIsNone) {
  std::ofstream(path_) << kKey << "\n10.0.0.7:2";
  ::chmod(path_.c_str(), 0600);
  EXPECT_EQ(ReadRunFile(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunFileTest, ErrorsNamePathAndRemedy) {
  const auto waited = WaitForRunFile(path_, 0);
  EXPECT_EQ(waited.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.status().message()), HasSubstr(path_));
  const auto written = WriteRunFile(directory_ + "/none/file", {kKey, "a:1"});
  EXPECT_THAT(std::string(written.message()), HasSubstr("--shared-dir"));
}

TEST(GuestStall, AJobThatRanAndGetsNoNodesIsGivenUp) {
  constexpr int64_t kS = kNsPerSec;
  StallClock clock(60'000);
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_QUEUED, false, 0));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_QUEUED, false, 1'000 * kS)) << "has not run yet";
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_RUNNING, true, 1'001 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_RUNNING, true, 9'000 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_QUEUED, true, 9'001 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_QUEUED, true, 9'030 * kS));
  EXPECT_TRUE(clock.TooLong(v1::JOB_STATE_QUEUED, true, 9'031 * kS));
}

TEST(GuestStall, ARecoveryThatDoesNotEndIsGivenUp) {
  constexpr int64_t kS = kNsPerSec;
  StallClock clock(60'000);
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_RECOVERING, true, 10 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_RECOVERING, true, 69 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_STARTING, true, 70 * kS));
  EXPECT_FALSE(clock.TooLong(v1::JOB_STATE_RECOVERING, true, 71 * kS)) << "another recovery";
  EXPECT_TRUE(clock.TooLong(v1::JOB_STATE_RECOVERING, true, 131 * kS));
}

}  // namespace
}  // namespace holdfast::cli
