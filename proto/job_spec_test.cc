// SPDX-License-Identifier: Apache-2.0
#include "proto/job_spec.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace holdfast::proto {
namespace {

v1::JobSpec CommandSpec() {
  v1::JobSpec spec;
  spec.set_name("a");
  spec.add_command("/bin/true");
  return spec;
}

v1::JobSpec TrainerSpec() {
  v1::JobSpec spec;
  spec.set_trainer_config("/etc/llama-7b.yaml");
  return spec;
}

// What a job file leads to: the parsed and validated message, or the first error.
std::string ErrorOf(const std::string& yaml) {
  auto spec = ParseJobYaml(yaml, "job.yaml");
  if (!spec.ok()) return std::string(spec.status().message());
  return std::string(ValidateJobSpec(&*spec).message());
}

struct BadFile {
  const char* yaml;
  const char* error;
};

TEST(JobYaml, BadFilesEachGetTheirExactError) {
  constexpr char kDurationRange[] = " is not a duration from 1s to 1d, such as 90s or 10m";
  const std::string grace_days = absl::StrCat("job.yaml:2: grace_s: \"2d\"", kDurationRange);
  const std::string grace_half = absl::StrCat("job.yaml:2: grace_s: \"1500ms\"", kDurationRange);
  const std::string fence_short = absl::StrCat("job.yaml:2: fence_ms: 5", kDurationRange);
  const std::string hang_word = absl::StrCat("job.yaml:2: hang_limit_ms: \"soon\"", kDurationRange);
  const BadFile cases[] = {
      {"", "job.yaml:1: the file holds no job"},
      {"just text", "job.yaml:1: a job is a mapping of fields to values, such as \"nodes: 2\""},
      {"- a\n- b\n", "job.yaml:1: a job is a mapping of fields to values, such as \"nodes: 2\""},
      {"command: [a]\nnodes: -1\n", "job.yaml:2: nodes: -1 is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: 0\n", "job.yaml:2: nodes: 0 is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: 4097\n",
       "job.yaml:2: nodes: 4097 is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: two\n",
       "job.yaml:2: nodes: \"two\" is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: 1.5\n",
       "job.yaml:2: nodes: \"1.5\" is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes:\n",
       "job.yaml:2: nodes: an empty value is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: [1]\n",
       "job.yaml:2: nodes: a list is not a whole number from 1 to 4096"},
      {"command: [a]\nnodes: 99999999999999999999\n",
       "job.yaml:2: nodes: \"99999999999999999999\" is not a whole number from 1 to 4096"},
      {"command: [a]\ngpus_per_node: 65\n",
       "job.yaml:2: gpus_per_node: 65 is not a whole number from 0 to 64"},
      {"command: [a]\ngpus_per_node: {}\n",
       "job.yaml:2: gpus_per_node: a mapping is not a whole number from 0 to 64"},
      {"command: [a]\nrestarts_max: -1\n",
       "job.yaml:2: restarts_max: -1 is not a whole number from 0 to 1000000"},
      {"command: [a]\nsnapshot_every_steps: 0\n",
       "job.yaml:2: snapshot_every_steps: 0 is not a whole number from 1 to 1000000000"},
      {"command: [a]\npersist_every_steps: x\n",
       "job.yaml:2: persist_every_steps: \"x\" is not a whole number from 1 to 1000000000"},
      {"command: [a]\npriority: high\n",
       "job.yaml:2: priority: \"high\" is not a whole number from -1000000 to 1000000"},
      {"command: [a]\ngrace_s: 2d\n", grace_days.c_str()},
      {"command: [a]\ngrace_s: 1500ms\n", grace_half.c_str()},
      {"command: [a]\nfence_ms: 5\n", fence_short.c_str()},
      {"command: [a]\nhang_limit_ms: soon\n", hang_word.c_str()},
      {"command: [a]\ntime_limit_s: 0\n",
       "job.yaml:2: time_limit_s: 0 is not a duration from 1s to 3650d, such as 90s or 10m"},
      {"command: [a]\nlog_bytes_per_rank: 1k\n",
       "job.yaml:2: log_bytes_per_rank: \"1k\" is not a size from 64KiB to 1TiB, such as 64MiB"},
      {"command: [a]\nrequeue: perhaps\n", "job.yaml:2: requeue: \"perhaps\" is not true or false"},
      {"command: [a]\nexpects_checkpoints: 3\n",
       "job.yaml:2: expects_checkpoints: 3 is not true or false"},
      {"command: [a]\nfence: none\n", "job.yaml:2: fence: \"none\" is not one of commit, witness"},
      {"command: [a]\nfence: [commit]\n",
       "job.yaml:2: fence: a list is not one of commit, witness"},
      {"command: [a]\nname:\n", "job.yaml:2: name: an empty value is not a text that is not empty"},
      {"command: [a]\nnode: 2\n", "job.yaml:2: node: unknown field; did you mean nodes?"},
      {"command: [a]\ngpus: 2\n", "job.yaml:2: gpus: unknown field; did you mean gpus_per_node?"},
      {"command: [a]\n\n\nsnapshot_every_step: 2\n",
       "job.yaml:4: snapshot_every_step: unknown field; did you mean snapshot_every_steps?"},
      {"command: [a]\nuid: 0\n",
       "job.yaml:2: uid: comes from who submits the job and cannot be set in a file; remove it"},
      {"command: [a]\nuser: root\n",
       "job.yaml:2: user: comes from who submits the job and cannot be set in a file; remove it"},
      {"command: [a]\nhas_requeue: true\n",
       "job.yaml:2: has_requeue: comes from who submits the job and cannot be set in a file; "
       "remove it"},
      {"command: [a]\ncpus_per_rank: [1]\n",
       "job.yaml:2: cpus_per_rank: pinning is not part of this version; remove the field"},
      {"nodes: 1\nnodes: 2\n", "job.yaml:2: nodes: is given twice"},
      {"? [a]\n: 1\n", "job.yaml:1: a field's name must be plain text"},
      {"command: {a: b}\n",
       "job.yaml:1: command: a mapping is not a list of arguments or a command line, such as "
       "[python, train.py]"},
      {"command: []\n",
       "job.yaml:1: command: a list is not a list of arguments or a command line, such as [python, "
       "train.py]"},
      {"command: [a, [b]]\n", "job.yaml:1: command: a list is not a text"},
      {"command: \"echo 'x\"\n", "job.yaml:1: command: the quote ' at character 6 is not closed"},
      {"command: [a]\nenvironment: [A=1]\n",
       "job.yaml:2: environment: a list is not a mapping of names to values, such as "
       "{OMP_NUM_THREADS: 1}"},
      {"command: [a]\nenvironment:\n  1A: x\n",
       "job.yaml:3: environment: \"1A\" is not a variable name ([A-Za-z_][A-Za-z0-9_]*)"},
      {"command: [a]\nenvironment:\n  A: x\n  A: y\n", "job.yaml:4: environment.A: is given twice"},
      {"command: [a]\nenvironment:\n  A: [x]\n", "job.yaml:3: environment.A: a list is not a text"},
      {"command: [a]\n---\ncommand: [b]\n", "job.yaml:3: a second document; a file holds one job"},
      // Contradictions, found by the validator.
      {"nodes: 1\n", "command: a job needs a command (after --) or a trainer_config (--trainer)"},
      {"command: [a]\ntrainer_config: /t.yaml\n",
       "trainer_config: a job runs either a command or a trainer configuration; remove one of the "
       "two"},
      {"trainer_config: t.yaml\n", "trainer_config: \"t.yaml\" is not an absolute path"},
      {"command: ['']\n", "command[0]: the program's name is empty"},
      {"command: [a]\nworking_directory: here\n",
       "working_directory: \"here\" is not an absolute path"},
      {"command: [a]\nstore: s3\n", "store: \"s3\" is not an absolute path"},
      {"command: [a]\nname: a/b\n",
       "name: \"a/b\" is not 1 to 63 of the characters A-Z a-z 0-9 . _ -, the first a letter or "
       "digit"},
      {"command: [a]\nname: ..\n",
       "name: \"..\" is not 1 to 63 of the characters A-Z a-z 0-9 . _ -, the first a letter or "
       "digit"},
      {"command: [a]\nfrom: yesterday\n",
       "from: \"yesterday\" is not a checkpoint such as j-42@100 or j-42@100.3"},
      {"command: [a]\nenvironment: {RANK: 1}\n",
       "environment.RANK: is set by Holdfast for each rank; remove it"},
      {"command: [a]\ngpus_per_node: 1\nenvironment: {CUDA_VISIBLE_DEVICES: 1}\n",
       "environment.CUDA_VISIBLE_DEVICES: is set by placement when gpus_per_node is not 0; remove "
       "one of the two"},
      {"command: [a]\npersist_every_steps: 10\n",
       "persist_every_steps: 10 needs snapshot_every_steps: a snapshot is what gets persisted"},
      {"command: [a]\nsnapshot_every_steps: 3\npersist_every_steps: 10\n",
       "persist_every_steps: 10 is not a multiple of snapshot_every_steps (3): only steps with a "
       "snapshot can be persisted"},
      {"command: [a]\nranks_per_node: 65\n",
       "job.yaml:2: ranks_per_node: 65 is not a whole number from 1 to 64"},
      {"command: [a]\ngpus_per_node: 2\nranks_per_node: 4\n",
       "ranks_per_node: 4 beside gpus_per_node 2: each GPU has one rank; remove one of the two"},
      {"trainer_config: /a.yaml\nranks_per_node: 2\n",
       "ranks_per_node: the trainer runs one rank for each GPU; use gpus_per_node"},
      {"command: [a]\nenvironment: {TORCHELASTIC_USE_AGENT_STORE: 1}\n",
       "environment.TORCHELASTIC_USE_AGENT_STORE: is set by Holdfast for each rank; remove it"},
      {"command: [a]\nname: -rf\n",
       "name: \"-rf\" is not 1 to 63 of the characters A-Z a-z 0-9 . _ -, the first a letter or "
       "digit"},
      {"command: [a]\nname: j-2\n", "name: \"j-2\" is the form of a job's id"},
      {"command: [a]\nexpects_checkpoints: true\n",
       "expects_checkpoints: true needs snapshot_every_steps, else there is nothing to commit"},
  };
  for (const BadFile& c : cases) EXPECT_EQ(ErrorOf(c.yaml), c.error) << c.yaml;
}

TEST(JobYaml, SyntaxErrorsNameFileAndLine) {
  const std::string error = ErrorOf("command: [a\nnodes: 1\n");
  EXPECT_EQ(error.substr(0, 9), "job.yaml:") << error;
  EXPECT_NE(error.find(": not YAML: "), std::string::npos) << error;
}

TEST(JobYaml, TooLargeAFileIsRefusedByItsSize) {
  const std::string error =
      ErrorOf("name: " + std::string(static_cast<size_t>(kSpecBytesMax), 'a'));
  EXPECT_EQ(error, "job.yaml: 1048582 bytes are more than the limit of 1048576");
}

TEST(JobYaml, DeepNestingIsAnErrorNotACrash) {
  const std::string error = ErrorOf("command: " + std::string(100'000, '['));
  EXPECT_NE(error, "");
}

TEST(JobYaml, EveryFieldIsRead) {
  auto spec = ParseJobYaml(R"(
name: llama
command: [python, train.py]
working_directory: /home/u
environment: {OMP_NUM_THREADS: 1, EMPTY: }
nodes: 2
gpus_per_node: 8
restarts_max: 0
snapshot_every_steps: 5
persist_every_steps: 10
fence: commit
fence_ms: 40s
grace_s: 2m
time_limit_s: 2h30m
log_bytes_per_rank: 1MiB
requeue: false
priority: -5
from: j-7@100.2
store: /mnt/store
expects_checkpoints: yes
hang_limit_ms: 10m
)",
                           "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(ValidateJobSpec(&*spec).ok());
  EXPECT_EQ(spec->name(), "llama");
  EXPECT_EQ(spec->command_size(), 2);
  EXPECT_EQ(spec->environment().at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(spec->environment().at("EMPTY"), "");
  EXPECT_EQ(spec->nodes(), 2u);
  EXPECT_EQ(spec->gpus_per_node(), 8u);
  EXPECT_EQ(spec->restarts_max(), 0u);
  EXPECT_TRUE(spec->has_restarts_max());
  EXPECT_EQ(spec->fence(), v1::FENCE_MODE_COMMIT);
  EXPECT_EQ(spec->fence_ms(), 40'000u);
  EXPECT_EQ(spec->grace_s(), 120u);
  EXPECT_EQ(spec->time_limit_s(), 9000u);
  EXPECT_EQ(spec->log_bytes_per_rank(), 1u << 20);
  EXPECT_FALSE(spec->requeue());
  EXPECT_EQ(spec->priority(), -5);
  EXPECT_EQ(spec->from(), "j-7@100.2");
  EXPECT_EQ(spec->store(), "/mnt/store");
  EXPECT_TRUE(spec->expects_checkpoints());
  EXPECT_EQ(spec->hang_limit_ms(), 600'000u);
}

TEST(JobYaml, CommandMayBeOneLine) {
  auto spec = ParseJobYaml("command: python 'my train.py' --lr 1e-3", "j");
  ASSERT_TRUE(spec.ok());
  ASSERT_EQ(spec->command_size(), 4);
  EXPECT_EQ(spec->command(1), "my train.py");
}

TEST(Validate, DefaultsOfACommand) {
  v1::JobSpec spec = CommandSpec();
  spec.clear_name();
  ASSERT_TRUE(ValidateJobSpec(&spec).ok());
  EXPECT_EQ(spec.name(), "true");
  EXPECT_EQ(spec.nodes(), 1u);
  EXPECT_EQ(spec.restarts_max(), 100u);
  EXPECT_EQ(spec.snapshot_every_steps(), 0u);
  EXPECT_EQ(spec.persist_every_steps(), 0u);
  EXPECT_EQ(spec.fence(), v1::FENCE_MODE_WITNESS);
  EXPECT_EQ(spec.fence_ms(), static_cast<uint32_t>(kFenceMsDefault));
  EXPECT_EQ(spec.grace_s(), 30u);
  EXPECT_EQ(spec.log_bytes_per_rank(), static_cast<uint64_t>(kLogBytesPerRankDefault));
  EXPECT_TRUE(spec.requeue());
  EXPECT_FALSE(spec.expects_checkpoints());
}

TEST(Validate, DefaultsOfTheTrainer) {
  v1::JobSpec spec = TrainerSpec();
  ASSERT_TRUE(ValidateJobSpec(&spec).ok());
  EXPECT_EQ(spec.name(), "llama-7b");
  EXPECT_EQ(spec.snapshot_every_steps(), 1u);
  EXPECT_EQ(spec.persist_every_steps(), 100u);
  EXPECT_EQ(spec.fence(), v1::FENCE_MODE_COMMIT);
  EXPECT_TRUE(spec.expects_checkpoints());
}

TEST(Validate, DefaultPersistIntervalIsAMultipleOfAGivenSnapshotInterval) {
  v1::JobSpec spec = TrainerSpec();
  spec.set_snapshot_every_steps(7);
  ASSERT_TRUE(ValidateJobSpec(&spec).ok());
  EXPECT_EQ(spec.persist_every_steps(), 105u);
}

TEST(Validate, ASecondPassChangesNothing) {
  for (v1::JobSpec spec : {CommandSpec(), TrainerSpec()}) {
    ASSERT_TRUE(ValidateJobSpec(&spec).ok());
    const std::string once = spec.SerializeAsString();
    ASSERT_TRUE(ValidateJobSpec(&spec).ok());
    EXPECT_EQ(spec.SerializeAsString(), once);
  }
}

TEST(Validate, WireInputThatNoFileCouldHold) {
  const struct {
    void (*change)(v1::JobSpec*);
    const char* error;
  } cases[] = {
      {[](v1::JobSpec* s) { s->set_nodes(5000); },
       "nodes: 5000 is not a whole number from 1 to 4096"},
      {[](v1::JobSpec* s) { s->set_gpus_per_node(UINT32_MAX); },
       "gpus_per_node: 4294967295 is not a whole number from 0 to 64"},
      {[](v1::JobSpec* s) { s->set_log_bytes_per_rank(UINT64_MAX); },
       "log_bytes_per_rank: 18446744073709551615 is not a size from 64KiB to 1TiB, such as 64MiB"},
      {[](v1::JobSpec* s) { s->set_log_bytes_per_rank((1ull << 40) + 1); },
       "log_bytes_per_rank: 1099511627777 is not a size from 64KiB to 1TiB, such as 64MiB"},
      {[](v1::JobSpec* s) { s->set_fence(static_cast<v1::FenceMode>(9)); },
       "fence: 9 is not one of commit, witness"},
      {[](v1::JobSpec* s) { s->add_command(std::string("a\0b", 3)); },
       "command[1]: holds a NUL byte"},
      {[](v1::JobSpec* s) { s->add_command("\xff"); },
       "command[1]: holds bytes that are not UTF-8"},
      {[](v1::JobSpec* s) { (*s->mutable_environment())["A=B"] = "x"; },
       "environment: \"A=B\" is not a variable name ([A-Za-z_][A-Za-z0-9_]*)"},
      {[](v1::JobSpec* s) { (*s->mutable_environment())["A"] = std::string("x\0y", 3); },
       "environment.A: holds a NUL byte"},
      {[](v1::JobSpec* s) {
         for (int i = 0; i < kArgsMax; ++i) s->add_command("x");
       },
       "command: 4097 arguments are more than the limit of 4096"},
      {[](v1::JobSpec* s) {
         for (int i = 0; i <= kEnvEntriesMax; ++i)
           (*s->mutable_environment())[absl::StrCat("A", i)] = "x";
       },
       "environment: 4097 variables are more than the limit of 4096"},
      {[](v1::JobSpec* s) { s->add_cpus_per_rank(1); },
       "cpus_per_rank: pinning is not part of this version; remove the field"},
      {[](v1::JobSpec* s) { s->set_name(std::string(64, 'a')); },
       "name: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\" is not 1 to 63 "
       "of the characters A-Z a-z 0-9 . _ -, the first a letter or digit"},
  };
  for (const auto& c : cases) {
    v1::JobSpec spec = CommandSpec();
    c.change(&spec);
    const absl::Status status = ValidateJobSpec(&spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_EQ(std::string(status.message()), c.error);
  }
}

TEST(Validate, TotalSizeHasALimit) {
  v1::JobSpec spec = CommandSpec();
  (*spec.mutable_environment())["BIG"] = std::string(static_cast<size_t>(kSpecBytesMax), 'x');
  const std::string message(ValidateJobSpec(&spec).message());
  EXPECT_NE(message.find("more than the limit of 1048576"), std::string::npos) << message;
}

}  // namespace
}  // namespace holdfast::proto
