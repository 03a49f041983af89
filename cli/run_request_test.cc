// SPDX-License-Identifier: Apache-2.0
#include "cli/run_request.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr MachineSize kMachine{.gpus = 0, .cpus = 6};

RunRequest Parsed(const std::vector<std::string>& arguments, MachineSize machine = kMachine) {
  auto request = ParseRun(arguments, machine);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *request : RunRequest();
}

TEST(RunRequest, WhatFollowsTheScriptIsTheScripts) {
  const RunRequest r =
      Parsed({"--nproc_per_node=4", "train.py", "--nproc-per-node", "9", "-m", "--", "x"});
  EXPECT_EQ(r.ranks, 4u);
  EXPECT_FALSE(r.module);
  EXPECT_THAT(r.program, ElementsAre("train.py", "--nproc-per-node", "9", "-m", "--", "x"));
}

TEST(RunRequest, TwoDashesEndTheFlags) {
  EXPECT_THAT(Parsed({"--no-python", "--", "-odd-name", "a"}).program,
              ElementsAre("-odd-name", "a"));
}

TEST(RunRequest, FlagsOfTorchrunMeanTheSameInBothSpellings) {
  const RunRequest r = Parsed({"--standalone", "--nnodes", "1", "--nproc-per-node", "2",
                               "--max_restarts", "0", "--role", "trainer", "--node_rank", "0",
                               "--local-ranks-filter", "0,1", "-m", "my.module"});
  EXPECT_EQ(r.ranks, 2u);
  EXPECT_EQ(r.max_restarts, 0u);
  EXPECT_EQ(r.role, "trainer");
  EXPECT_TRUE(r.module);
  EXPECT_THAT(r.shown_ranks, ElementsAre(0u, 1u));
  EXPECT_THAT(r.program, ElementsAre("my.module"));
  EXPECT_THAT(r.without_effect, IsEmpty());
}

TEST(RunRequest, DefaultsAreOneRankAndTheSchedulersRestarts) {
  const RunRequest r = Parsed({"train.py"});
  EXPECT_EQ(r.ranks, 1u);
  EXPECT_FALSE(r.max_restarts.has_value());
}

TEST(RunRequest, RanksAreCountedOnTheMachine) {
  EXPECT_EQ(Parsed({"--nproc-per-node", "auto", "a"}).ranks, 6u);
  EXPECT_EQ(Parsed({"--nproc-per-node", "cpu", "a"}).ranks, 6u);
  EXPECT_EQ(Parsed({"--nproc-per-node", "auto", "a"}, {.gpus = 8, .cpus = 6}).ranks, 8u);
  EXPECT_EQ(Parsed({"--nproc-per-node", "gpu", "a"}, {.gpus = 8, .cpus = 6}).ranks, 8u);
  EXPECT_EQ(Parsed({"--nproc-per-node", "cpu", "a"}, {.gpus = 0, .cpus = 500}).ranks, 64u);
}

TEST(RunRequest, WhatIsIgnoredIsTold) {
  const RunRequest r = Parsed({"--master-port", "29500", "--rdzv-backend=c10d", "-t", "3", "a.py"});
  ASSERT_THAT(r.without_effect, SizeIs(3));
  EXPECT_THAT(r.without_effect[0], HasSubstr("--master-port has no effect: each attempt"));
}

TEST(RunRequest, ErrorsNameFlagAndValue) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "no script"},
      {{"--nproc-per-node", "2"}, "no script"},
      {{"--nproc-per-node"}, "--nproc-per-node: its value is missing"},
      {{"--nproc-per-node", "0", "a"}, "--nproc-per-node: \"0\" is not auto, gpu, cpu or a number"},
      {{"--nproc-per-node", "65", "a"}, "\"65\""},
      {{"--nproc-per-node", "gpu", "a"}, "this machine shows no GPU"},
      {{"--nproc-per-node", "x", "a"}, "\"x\""},
      {{"--nnodes", "0", "a"}, "--nnodes: \"0\" is not a number from 1"},
      {{"--nnodes=4:1", "a"}, "\"4:1\""},
      {{"--nnodes=1:", "a"}, "\"1:\""},
      {{"--node-rank", "-1", "a"}, "--node-rank: \"-1\""},
      {{"--max-restarts", "-1", "a"}, "--max-restarts: \"-1\""},
      {{"--local-ranks-filter", "3", "a"}, "not one of the ranks 0 to 0"},
      {{"--local-ranks-filter", "a", "b"}, "--local-ranks-filter: \"a\""},
      {{"--module=yes", "a"}, "--module: \"yes\" is not wanted"},
      {{"-m", "--no-python", "a"}, "not together"},
      {{"--nprocs", "2", "a"}, "unknown flag --nprocs"},
      {{"-x", "a"}, "unknown flag -x"},
  };
  for (const auto& [arguments, text] : cases) {
    const auto request = ParseRun(arguments, kMachine);
    ASSERT_FALSE(request.ok()) << text;
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(text));
  }
}

TEST(RunRequest, HelpListsWhatIsTaken) {
  const std::string help = RunFlagsHelp();
  for (const char* flag : {"--nproc-per-node N", "--max-restarts N", "--state DIR", "-m ", "--tee"})
    EXPECT_THAT(help, HasSubstr(flag));
  EXPECT_THAT(help, Not(HasSubstr("--endpoint")));
}

TEST(RunRequest, TheCommandIsTheInterpreterUnbuffered) {
  ASSERT_EQ(::setenv("PYTHON_EXEC", "/bin/sh", 1), 0);
  EXPECT_THAT(*CommandOf(Parsed({"/dev/null", "a"})),
              ElementsAre("/bin/sh", "-u", "/dev/null", "a"));
  EXPECT_THAT(*CommandOf(Parsed({"-m", "pkg.mod", "a"})),
              ElementsAre("/bin/sh", "-u", "-m", "pkg.mod", "a"));
  EXPECT_THAT(*CommandOf(Parsed({"--no-python", "true", "a"})), ElementsAre("true", "a"));
  const auto missing = CommandOf(Parsed({"/no/such.py"}));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such.py"));
  const auto no_program = CommandOf(Parsed({"--no-python", "./no-such-program"}));
  EXPECT_EQ(no_program.status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(::setenv("PYTHON_EXEC", "/no/such/python", 1), 0);
  const auto no_python = CommandOf(Parsed({"/dev/null"}));
  EXPECT_EQ(no_python.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_python.status().message()), HasSubstr("PYTHON_EXEC: /no/such/python"));
  ASSERT_EQ(::unsetenv("PYTHON_EXEC"), 0);
}

}  // namespace
}  // namespace holdfast::cli
