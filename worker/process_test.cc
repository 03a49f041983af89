// SPDX-License-Identifier: Apache-2.0
// The programs themselves: holdfast-worker alone on one rank, --check, and holdfast-data, with exit
// codes and one error line.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/testing/temp_dir.h"
#include "worker/exit_codes.h"

namespace holdfast::worker {
namespace {

using testing::TempDir;

struct Outcome {
  int code = -1;
  std::string out, err;
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::istringstream in(out);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
};

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs a program of the build; 60 s at most.
Outcome RunProgram(const TempDir& dir, const std::string& program, const std::string& arguments,
                   const std::string& environment = "") {
  const std::string command = "env -u HOLDFAST_SOCKET " + environment +
                              " timeout 60 " HOLDFAST_BIN_DIR "/" + program + " " + arguments +
                              " >" + dir.Sub("out") + " 2>" + dir.Sub("err");
  Outcome outcome;
  const int status = std::system(command.c_str());
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = Slurp(dir.Sub("out"));
  outcome.err = Slurp(dir.Sub("err"));
  return outcome;
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string Alphabet() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "abcdefghijklmnopqrstuvwxyz 0123456789\n";
  return text;
}

void WriteConfig(const TempDir& dir, const std::string& data) {
  Write(dir.Sub("c.yaml"),
        "model: {vocab: 256, dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64, seq_len: 32}\n"
        "data: " +
            data + "\ntrain: {steps: 20, micro_batch: 4}\noptimizer: {lr: 0.01}\n");
}

TEST(Worker, AloneLearnsARepeatedText) {
  const TempDir dir;
  Write(dir.Sub("t.txt"), Alphabet());
  ASSERT_EQ(RunProgram(dir, "holdfast-data",
                       "build --byte-level --input " + dir.Sub("t.txt") + " --out " + dir.Sub("d"))
                .code,
            0);
  WriteConfig(dir, "{prefix: d}");
  ASSERT_EQ(RunProgram(dir, "holdfast-worker", "--check " + dir.Sub("c.yaml") + " --ranks 1").code,
            0);
  const Outcome first = RunProgram(dir, "holdfast-worker", "--config " + dir.Sub("c.yaml"));
  ASSERT_EQ(first.code, 0) << first.err;
  const auto lines = first.Lines();
  ASSERT_EQ(lines.size(), 20u);
  const auto begin = nlohmann::json::parse(lines.front()),
             end = nlohmann::json::parse(lines.back());
  EXPECT_EQ(begin["step"], 1);
  EXPECT_EQ(end["samples"], 80);
  EXPECT_NEAR(begin["loss"].get<double>(), 5.55, 0.3);  // ln 256: it knows nothing yet
  EXPECT_LT(end["loss"].get<double>(), 0.75 * begin["loss"].get<double>());
  // And again: the same numbers, but for the speed.
  const auto again = nlohmann::json::parse(
      RunProgram(dir, "holdfast-worker", "--config " + dir.Sub("c.yaml")).Lines().back());
  EXPECT_EQ(again["loss"], end["loss"]);
  EXPECT_EQ(again["grad_norm"], end["grad_norm"]);
}

TEST(Worker, ADroppedMicroBatchShowsInWhatFollows) {
  const TempDir dir;
  WriteConfig(dir, "{kind: synthetic}");
  Write(dir.Sub("fault.json"), R"({"drop_micro_batch":{"step":3,"rank":0}})");
  const auto right = RunProgram(dir, "holdfast-worker", "--config " + dir.Sub("c.yaml")).Lines();
  const auto wrong = RunProgram(dir, "holdfast-worker", "--config " + dir.Sub("c.yaml"),
                                "HOLDFAST_FAULT_FILE=" + dir.Sub("fault.json"))
                         .Lines();
  ASSERT_EQ(right.size(), 20u);
  ASSERT_EQ(wrong.size(), 20u);
  const auto loss = [](const std::string& line) {
    return nlohmann::json::parse(line)["loss"].get<double>();
  };
  EXPECT_EQ(loss(right[2]), loss(wrong[2]));
  EXPECT_NE(loss(right[3]), loss(wrong[3]));
}

TEST(Worker, BadInputIsOneLineAndItsOwnExitCode) {
  const TempDir dir;
  Write(dir.Sub("t.txt"), Alphabet());
  ASSERT_EQ(RunProgram(dir, "holdfast-data",
                       "build --byte-level --input " + dir.Sub("t.txt") + " --out " + dir.Sub("d"))
                .code,
            0);
  const auto expect = [&](const std::string& arguments, int code, const std::string& says,
                          const std::string& environment = "") {
    const Outcome outcome = RunProgram(dir, "holdfast-worker", arguments, environment);
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  WriteConfig(dir, "{prefix: none}");
  const std::string check = "--check " + dir.Sub("c.yaml"), train = "--config " + dir.Sub("c.yaml");
  expect(check, kExitUsage, "none.bin");
  expect(train, kExitData, "none.bin");
  WriteConfig(dir, "{prefix: d, knid: tokens}");
  expect(check, kExitUsage, "data.knid: unknown field; the nearest known one is data.kind");
  expect(train, kExitUsage, "data.knid");
  WriteConfig(dir, "{prefix: d}");
  expect(check + " --ranks 0", kExitUsage, "ranks: 0");
  expect("--check " + dir.Sub("no.yaml"), kExitUsage, "no.yaml");
  expect("", kExitUsage, "--config");
  expect(train, kExitUsage, "seldom", "HOLDFAST_SNAPSHOT_EVERY=seldom");
  Write(dir.Sub("fault.json"), R"({"drop_batch":{}})");
  expect(train, kExitUsage, "drop_batch: unknown fault",
         "HOLDFAST_FAULT_FILE=" + dir.Sub("fault.json"));
  expect(train, kExitRestore, "HOLDFAST_RESTORE", "HOLDFAST_RESTORE=nonsense");
  expect(train, kExitRestore, "snapshot:7.1", "HOLDFAST_RESTORE=snapshot:7.1");
  Write(dir.Sub("d.bin"), "cut");
  expect(check, kExitUsage, "d.bin");
}

TEST(Worker, CheckFindsTokensOutsideTheVocabulary) {
  const TempDir dir;
  Write(dir.Sub("t.txt"), Alphabet());
  ASSERT_EQ(RunProgram(dir, "holdfast-data",
                       "build --byte-level --input " + dir.Sub("t.txt") + " --out " + dir.Sub("d"))
                .code,
            0);
  Write(dir.Sub("c.yaml"),
        "model: {vocab: 100, dim: 32, layers: 1, heads: 4, ffn: 64, seq_len: 32}\ndata: {prefix: "
        "d}\ntrain: {steps: 1}\n");
  const Outcome outcome = RunProgram(dir, "holdfast-worker", "--check " + dir.Sub("c.yaml"));
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_NE(outcome.err.find("holds token 122, but model.vocab is 100"), std::string::npos)
      << outcome.err;
}

TEST(Data, InspectGivesCountsAndEntropyAndFindsACutFile) {
  const TempDir dir;
  Write(dir.Sub("t.txt"), "abab");
  ASSERT_EQ(RunProgram(dir, "holdfast-data",
                       "build --byte-level --input " + dir.Sub("t.txt") + " --out " + dir.Sub("d"))
                .code,
            0);
  const Outcome outcome = RunProgram(dir, "holdfast-data", "inspect --json " + dir.Sub("d"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["tokens"], 5);
  EXPECT_EQ(json["documents"], 1);
  EXPECT_EQ(json["distinct_tokens"], 3);
  EXPECT_NEAR(json["unigram_entropy_nats"].get<double>(), 1.0549, 1e-4);  // 2/5, 2/5, 1/5
  Write(dir.Sub("d.bin"), "cut");
  const Outcome cut = RunProgram(dir, "holdfast-data", "inspect " + dir.Sub("d"));
  EXPECT_EQ(cut.code, kExitInternal);
  EXPECT_NE(cut.err.find("d.bin"), std::string::npos) << cut.err;
  EXPECT_EQ(RunProgram(dir, "holdfast-data", "build --out x").code, kExitUsage);
}

}  // namespace
}  // namespace holdfast::worker
