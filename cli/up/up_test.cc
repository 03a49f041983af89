// SPDX-License-Identifier: Apache-2.0
// The real `holdfast up` over stand-ins for its daemons (cli/testing/fake_daemon.cc).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "cli/state_dir.h"
#include "cli/testing/testing_process.h"
#include "cli/up/plan.h"
#include "cli/up/run_dir.h"

namespace holdfast::cli {
namespace {

bool Alive(pid_t pid) {
  if (pid <= 0 || ::kill(pid, 0) != 0) return false;
  const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat.size() > end + 2 && stat[end + 2] != 'Z';
}

class UpTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(bin_);
    std::filesystem::create_directories(state_ + "/fake");
    for (const char* name : {"holdfast-scheduler", "holdfast-agent"}) {
      std::filesystem::create_symlink(BuiltProgram("../tests/holdfast_fake_daemon"),
                                      bin_ + "/" + name);
    }
  }

  void TearDown() override {
    Holdfast({"down"});
    for (const char* name : {"up", "scheduler", "agent-n0", "agent-n1"}) {
      const pid_t pid = Pid(name);
      if (Alive(pid)) ::kill(pid, SIGKILL);
    }
  }

  Output Holdfast(std::vector<std::string> arguments) {
    return RunToEnd(Command(std::move(arguments)));
  }
  std::vector<std::string> Command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), BuiltProgram("holdfast"));
    arguments.insert(arguments.end(), {"--state", state_});
    return arguments;
  }
  Output Up() {
    return Holdfast(
        {"up", "--nodes", "2", "--gpus-per-node", "2", "--simulate", "-d", "--bin-dir", bin_});
  }

  pid_t Pid(const std::string& name) {
    return static_cast<pid_t>(std::atoi(ReadText(state_ + "/run/" + name + ".pid").c_str()));
  }
  // Waits for a living process of this name that is not `before`.
  pid_t NewPid(const std::string& name, pid_t before) {
    WaitUntil([&] { return Pid(name) != before && Alive(Pid(name)); });
    return Pid(name);
  }

  TemporaryDirectory directory_;
  const std::string bin_ = directory_ / "bin";
  const std::string state_ = directory_ / "s";
};

TEST_F(UpTest, ComesUpRefusesASecondAndGoesDownWithoutATrace) {
  const Output up = Up();
  ASSERT_EQ(up.code, 0) << up.err;
  std::vector<pid_t> pids;
  for (const char* name : {"up", "scheduler", "agent-n0", "agent-n1"}) {
    pids.push_back(Pid(name));
    EXPECT_TRUE(Alive(pids.back())) << name;
  }
  const Output second = Up();
  EXPECT_EQ(second.code, 4);
  EXPECT_NE(second.err.find("pid " + std::to_string(pids[0])), std::string::npos) << second.err;
  EXPECT_NE(second.err.find(state_), std::string::npos) << second.err;

  const Output down = Holdfast({"down", "--json"});
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.out,
            "{\"state\":\"" + state_ +
                "\",\"was_up\":true,\"cancelled\":[],\"keepers_killed\":0,\"keepers_left\":0}\n");
  for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid));
  for (const auto& entry : std::filesystem::directory_iterator(state_ + "/run")) {
    EXPECT_NE(entry.path().extension(), ".pid") << entry.path();
    EXPECT_NE(entry.path().extension(), ".sock") << entry.path();
  }
  const Output again = Holdfast({"down"});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("nothing was up"), std::string::npos) << again.err;
}

TEST_F(UpTest, DevicesAreWrittenOnceAndKept) {
  ASSERT_EQ(Up().code, 0);
  const std::string path = state_ + "/nodes/n1/devices.json";
  const std::string text = ReadText(path);
  EXPECT_NE(text.find("\"n1-gpu1\""), std::string::npos) << text;
  EXPECT_NE(text.find("85899345920"), std::string::npos) << text;
  EXPECT_EQ(text.find("n1-gpu2"), std::string::npos);
  ASSERT_EQ(Holdfast({"down"}).code, 0);
  WriteText(path, "{\"devices\":[]}");
  const Output up = Up();
  EXPECT_EQ(up.code, 0) << up.err;
  EXPECT_NE(up.err.find("has 0 devices and is kept"), std::string::npos) << up.err;
  EXPECT_EQ(ReadText(path), "{\"devices\":[]}");
}

TEST_F(UpTest, WhatDiesStartsAgainAndTheOthersDoNot) {
  ASSERT_EQ(Up().code, 0);
  const pid_t scheduler = Pid("scheduler");
  for (int i = 0; i < 3; ++i) {
    const pid_t agent = Pid("agent-n1");
    ASSERT_GT(agent, 0);
    ::kill(agent, SIGKILL);
    ASSERT_NE(NewPid("agent-n1", agent), agent);
  }
  EXPECT_EQ(Pid("scheduler"), scheduler);
  ::kill(scheduler, SIGKILL);
  EXPECT_NE(NewPid("scheduler", scheduler), scheduler);
}

TEST_F(UpTest, WhatStaysStoppedIsKilledAndStartsAgain) {
  ASSERT_EQ(Up().code, 0);
  const pid_t agent = Pid("agent-n0");
  ::kill(agent, SIGSTOP);
  EXPECT_NE(NewPid("agent-n0", agent), agent);
  EXPECT_FALSE(Alive(agent));
  EXPECT_NE(ReadText(state_ + "/run/up.log").find("is killed: stopped for 1000 ms"),
            std::string::npos);
}

TEST_F(UpTest, WhatIsSilentIsKilledAndStartsAgain) {
  ASSERT_EQ(Up().code, 0);
  const pid_t scheduler = Pid("scheduler");
  WriteText(state_ + "/fake/scheduler.silent", "");
  ASSERT_TRUE(WaitUntil([&] { return !Alive(scheduler); }));
  std::filesystem::remove(state_ + "/fake/scheduler.silent");
  EXPECT_NE(NewPid("scheduler", scheduler), scheduler);
  EXPECT_NE(ReadText(state_ + "/run/up.log").find("is killed: silent for 1000 ms"),
            std::string::npos);
}

TEST_F(UpTest, AHeldDaemonStaysDownUntilTheHoldEnds) {
  ASSERT_EQ(Up().code, 0);
  const pid_t agent = Pid("agent-n0");
  std::filesystem::create_directories(state_ + "/run/hold");
  WriteText(state_ + "/run/hold/agent-n0", "");
  ::kill(agent, SIGKILL);
  // The other agent's restart, ordered later, shows that the held one's time has passed.
  const pid_t other = Pid("agent-n1");
  ASSERT_TRUE(WaitUntil([&] { return !FileExists(state_ + "/run/agent-n0.pid"); }));
  ::kill(other, SIGKILL);
  ASSERT_NE(NewPid("agent-n1", other), other);
  EXPECT_FALSE(FileExists(state_ + "/run/agent-n0.pid"));
  std::filesystem::remove(state_ + "/run/hold/agent-n0");
  EXPECT_GT(NewPid("agent-n0", 0), 0);
}

TEST_F(UpTest, DownEndsAnUpThatIsStillStartingAndItsCallerIsToldSo) {
  WriteText(state_ + "/fake/agent-n1.unready", "");
  Output up;
  std::thread caller([&] { up = Up(); });
  ASSERT_TRUE(WaitUntil([&] { return Alive(Pid("up")) && Alive(Pid("scheduler")); }));
  EXPECT_EQ(Holdfast({"down"}).code, 0);
  caller.join();
  EXPECT_EQ(up.code, 4) << up.err;
  EXPECT_NE(up.err.find("ended before all was ready"), std::string::npos) << up.err;
}

TEST_F(UpTest, AHoldThatWasLeftBehindIsRefusedByName) {
  std::filesystem::create_directories(state_ + "/run/hold");
  WriteText(state_ + "/run/hold/scheduler", "");
  const Output up = Up();
  EXPECT_EQ(up.code, 4) << up.err;
  EXPECT_NE(up.err.find("/run/hold/scheduler is left from a drill"), std::string::npos) << up.err;
}

TEST_F(UpTest, ARefusalAtStartEndsUpWithTheDaemonsOwnWords) {
  for (const int code : {2, 4}) {
    WriteText(state_ + "/fake/scheduler.exit",
              std::to_string(code) + "\nthe lock is held by somebody\n");
    const Output up = Up();
    EXPECT_EQ(up.code, code) << up.err;
    EXPECT_NE(up.err.find("the lock is held by somebody"), std::string::npos) << up.err;
    EXPECT_FALSE(FileExists(state_ + "/run/agent-n0.pid"));
    EXPECT_FALSE(FileExists(state_ + "/run/up.pid"));
  }
}

TEST_F(UpTest, AnAgentsRefusalEndsTheSchedulerToo) {
  WriteText(state_ + "/fake/agent-n1.exit", "2\nunknown device kind\n");
  const Output up = Up();
  EXPECT_EQ(up.code, 2) << up.err;
  EXPECT_NE(up.err.find("unknown device kind"), std::string::npos) << up.err;
  EXPECT_FALSE(FileExists(state_ + "/run/scheduler.pid"));
}

TEST_F(UpTest, AKilledUpTakesItsDaemonsAlongAndTheNextComesUp) {
  ASSERT_EQ(Up().code, 0);
  const pid_t up = Pid("up");
  const pid_t scheduler = Pid("scheduler");
  const pid_t agent = Pid("agent-n0");
  ::kill(up, SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return !Alive(up) && !Alive(scheduler) && !Alive(agent); }));
  const Output next = Up();
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_NE(Pid("up"), up);
}

TEST_F(UpTest, CtrlCInTheForegroundCancelsTheJobsFirst) {
  WriteText(state_ + "/fake/job", "");
  RunningProgram up(Command({"up", "--simulate", "--bin-dir", bin_}));
  ASSERT_TRUE(
      WaitUntil([&] { return Alive(Pid("agent-n0")) && FileExists(state_ + "/scheduler.sock"); }));
  const pid_t scheduler = Pid("scheduler");
  ::kill(up.pid(), SIGINT);
  const Output output = up.Wait();
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_TRUE(FileExists(state_ + "/fake/cancelled")) << output.err;
  EXPECT_FALSE(Alive(scheduler));
}

TEST_F(UpTest, DownCancelsUnlessToldToLeaveTheRanks) {
  WriteText(state_ + "/fake/job", "");
  ASSERT_EQ(Up().code, 0);
  EXPECT_EQ(Holdfast({"down", "--leave-ranks"}).code, 0);
  EXPECT_FALSE(FileExists(state_ + "/fake/cancelled"));
  ASSERT_EQ(Up().code, 0);
  const Output down = Holdfast({"down"});
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_NE(down.err.find("cancelling j-1"), std::string::npos) << down.err;
  EXPECT_TRUE(FileExists(state_ + "/fake/cancelled"));
}

TEST_F(UpTest, DownKillsKeepersThatNobodyOwnsAndNoOtherProcess) {
  ASSERT_EQ(Up().code, 0);
  const std::string keeper = state_ + "/nodes/n0/keepers/j-1";
  const std::string stranger = state_ + "/nodes/n0/keepers/j-2";
  std::filesystem::create_directories(keeper);
  std::filesystem::create_directories(stranger);
  RunningProgram mine({"/bin/sh", "-c", "kill -STOP $$", "--dir", keeper});
  RunningProgram other({"/bin/sh", "-c", "kill -STOP $$"});
  WriteText(keeper + "/pid", std::to_string(mine.pid()));
  WriteText(stranger + "/pid", std::to_string(other.pid()));
  EXPECT_EQ(LiveKeepers(state_).size(), 1u);
  const Output down = Holdfast({"down"});
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_FALSE(Alive(mine.pid()));
  EXPECT_TRUE(Alive(other.pid()));
}

TEST_F(UpTest, WrongOptionsAreUsageErrors) {
  const struct {
    std::vector<std::string> arguments;
    const char* error;
  } cases[] = {
      {{"up", "--nodes", "0", "--simulate"}, "--nodes: 0 is not a whole number from 1 to 64"},
      {{"up", "--nodes", "2"}, "--nodes: 2 nodes on one machine need --simulate"},
      {{"up", "--gpus-per-node", "2"},
       "needs --simulate: real GPUs are not yet found by this version"},
      {{"up", "--gpus-per-node", "65", "--simulate"},
       "--gpus-per-node: 65 is not a whole number from 0 to 64"},
  };
  for (const auto& c : cases) {
    const Output output = Holdfast(c.arguments);
    EXPECT_EQ(output.code, 2) << output.err;
    EXPECT_NE(output.err.find(c.error), std::string::npos) << output.err;
  }
}

TEST_F(UpTest, MissingProgramsAreNamed) {
  std::filesystem::remove(bin_ + "/holdfast-agent");
  const Output up = Up();
  EXPECT_EQ(up.code, 3);
  EXPECT_NE(up.err.find("holdfast-agent was not found"), std::string::npos) << up.err;
}

TEST_F(UpTest, AStateDirectoryThatCannotBeUsedIsOneClearError) {
  WriteText(directory_ / "file", "");
  const Output below = RunToEnd(
      {BuiltProgram("holdfast"), "up", "--state", directory_ / "file/s", "--bin-dir", bin_});
  EXPECT_NE(below.code, 0);
  EXPECT_NE(below.err.find("cannot use the state directory " + directory_ / "file/s"),
            std::string::npos)
      << below.err;
  const std::string deep = directory_ / std::string(100, 'x');
  const Output too_long =
      RunToEnd({BuiltProgram("holdfast"), "up", "--state", deep, "--bin-dir", bin_});
  EXPECT_EQ(too_long.code, 2);
  EXPECT_NE(too_long.err.find("state directory path too long"), std::string::npos) << too_long.err;
  EXPECT_NE(too_long.err.find("107"), std::string::npos) << too_long.err;
  EXPECT_FALSE(FileExists(deep));
}

}  // namespace
}  // namespace holdfast::cli
