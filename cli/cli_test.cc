// SPDX-License-Identifier: Apache-2.0
// The real `holdfast` against a scheduler of the test's own making.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "cli/testing/fake_scheduler.h"
#include "cli/testing/testing_process.h"

namespace holdfast::cli {
namespace {

class CliTest : public testing::Test {
 protected:
  void SetUp() override { scheduler_.Start(); }

  std::vector<std::string> Command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), BuiltProgram("holdfast"));
    return arguments;
  }
  std::vector<std::string> Environment() const { return {"HOLDFAST_STATE=" + state_.path()}; }
  Output Holdfast(std::vector<std::string> arguments) const {
    return RunToEnd(Command(std::move(arguments)), Environment());
  }

  void PutJob(const std::string& key, v1::JobState state, const std::string& reason = "") {
    scheduler_.Change([&](FakeScheduler::Answers* a) {
      v1::JobStatus& job = a->jobs[key];
      job.set_id(7);
      job.mutable_spec()->set_name("llama");
      job.mutable_spec()->set_nodes(1);
      job.set_state(state);
      job.set_reason(reason);
      job.set_attempt(2);
    });
  }
  void PutEvent(uint64_t sequence, const std::string& kind) {
    scheduler_.Change([&](FakeScheduler::Answers* a) {
      v1::Event event;
      event.set_sequence(sequence);
      event.set_wall_ns(1'700'000'000'123'000'000);
      event.set_kind(kind);
      event.set_job(7);
      event.set_text("text " + std::to_string(sequence));
      a->events.push_back(event);
    });
  }
  static v1::LogChunk Chunk(uint32_t rank, const std::string& data, int64_t offset = -1) {
    v1::LogChunk chunk;
    chunk.set_rank(rank);
    chunk.set_attempt(1);
    chunk.set_data(data);
    if (offset >= 0) {
      chunk.set_offset(static_cast<uint64_t>(offset));
      chunk.set_has_offset(true);
    }
    return chunk;
  }
  static v1::LogChunk End(const std::string& reason) {
    v1::LogChunk chunk;
    chunk.set_end(true);
    chunk.set_end_reason(reason);
    return chunk;
  }

  TemporaryDirectory state_;
  FakeScheduler scheduler_{state_ / "scheduler.sock"};
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- help and usage

TEST_F(CliTest, EveryVerbHasHelpThatBeginsWithExamples) {
  const Output help = Holdfast({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_LT(help.out.find("Examples:"), help.out.find("Usage:")) << help.out;
  for (const char* verb : {"up", "down", "submit", "ps", "describe", "logs", "look", "ledger",
                           "modes", "events", "wait", "cancel", "restart", "save", "nodes", "drain",
                           "uncordon", "confirm-dead", "version"}) {
    EXPECT_TRUE(Has(help.out, absl::StrCat("\n  ", verb, " "))) << verb << "\n" << help.out;
    const Output one = Holdfast({verb, "--help"});
    EXPECT_EQ(one.code, 0) << verb << one.err;
    EXPECT_TRUE(Has(one.out, "Examples:\n  holdfast ")) << one.out;
    EXPECT_LT(one.out.find("Examples:"), one.out.find("Usage:")) << verb;
    EXPECT_TRUE(Has(one.out, absl::StrCat("Usage: holdfast ", verb, " "))) << one.out;
    EXPECT_TRUE(Has(one.out, "--json")) << verb;
  }
}

TEST_F(CliTest, UsageErrorsAreExitCodeTwoAndSayWhatToDo) {
  const struct {
    std::vector<std::string> arguments;
    const char* error;
  } cases[] = {
      {{}, "Usage:"},
      {{"sumbit", "--", "x"}, "holdfast: unknown verb sumbit; did you mean submit?"},
      {{"frobnicate"}, "holdfast: unknown verb frobnicate\n"},
      {{"ps", "--al"}, "holdfast: ps: The following argument was not expected: --al"},
      {{"cancel"}, "holdfast: cancel: job is required"},
      {{"submit", "python", "train.py"},
       "a command goes after --, as in: holdfast submit -- python train.py"},
      {{"submit"},
       "holdfast: command: a job needs a command (after --) or a trainer_config (--trainer)"},
      {{"submit", "--nodes", "0", "--", "x"},
       "holdfast: --nodes: 0 is not a whole number from 1 to 4096"},
      {{"submit", "--nodes", "-1", "--", "x"},
       "holdfast: --nodes: -1 is not a whole number from 1 to 4096"},
      {{"submit", "--gpus-per-node", "many", "--", "x"},
       "--gpus-per-node: \"many\" is not a whole number from 0 to 64"},
      {{"submit", "--grace", "soon", "--", "x"},
       "--grace: \"soon\" is not a duration from 1s to 1d, such as 90s or 10m"},
      {{"submit", "--fence", "no", "--", "x"}, "--fence: \"no\" is not one of commit, witness"},
      {{"submit", "--from", "j-1", "--", "x"},
       "from: \"j-1\" is not a checkpoint such as j-42@100 or j-42@100.3"},
      {{"submit", "--trainer", "t.yaml", "--", "x"},
       "--trainer: a job runs either a command or a trainer configuration; remove one of the two"},
      {{"submit", "--env", "NOT_SET_ANYWHERE", "--", "x"},
       "--env: NOT_SET_ANYWHERE is not set here"},
      {{"submit", "--env", "RANK=1", "--", "x"},
       "environment.RANK: is set by Holdfast for each rank; remove it"},
      {{"submit", "-f", "/nonexistent/job.yaml"}, "/nonexistent/job.yaml"},
      {{"ps", "--timeout", "x"}, "--timeout: \"x\" is not a duration"},
      {{"ps", "--", "x"}, "holdfast: ps takes no command after --"},
      {{"restart", "j-7", "--from", "0"},
       "holdfast: restart: --from: 0 is not a whole number from 1"},
      {{"logs", "j-7", "--tail", "-1"}, "holdfast: logs: --tail: -1 is not a whole number from 0"},
      {{"ledger", "--since", "soon"}, "--since: \"soon\" is not a duration such as 12h or 7d"},
      {{"modes", "j-7", "hang=on"}, "modes: \"hang=on\" is not observe or act"},
      {{"modes", "j-7"}, "holdfast: modes: modes is required"},
      {{"look"}, "holdfast: look: job is required"},
      {{"look", "j-7", "--rank", "-1"}, "holdfast: look: --rank: -1 is not a whole number from 0"},
      {{"look", "j-7", "--interval", "0s"},
       "--interval: \"0s\" is not a duration from 10ms to 10m, such as 500ms or 2s"},
      {{"drain", "n0"}, "holdfast: drain: --reason is required"},
  };
  for (const auto& c : cases) {
    const Output output = Holdfast(c.arguments);
    EXPECT_EQ(output.code, 2) << output.err;
    EXPECT_TRUE(Has(output.err, c.error)) << output.err << "\nwanted: " << c.error;
    EXPECT_EQ(output.out, "");
  }
  EXPECT_TRUE(scheduler_.asked().submits.empty());
}

TEST_F(CliTest, NoSchedulerIsExitCodeFiveNamingEndpointAndRemedy) {
  scheduler_.Stop();
  for (const std::vector<std::string>& verb : {std::vector<std::string>{"ps"},
                                               {"nodes"},
                                               {"describe", "j-1"},
                                               {"wait", "j-1"},
                                               {"events"},
                                               {"logs", "j-1"},
                                               {"save", "j-1"},
                                               {"submit", "--", "x"}}) {
    std::vector<std::string> arguments = {verb[0], "--timeout", "100ms"};
    arguments.insert(arguments.end(), verb.begin() + 1, verb.end());
    const Output output = Holdfast(arguments);
    EXPECT_EQ(output.code, 5) << verb[0];
    EXPECT_TRUE(Has(output.err, "no scheduler answers at " + scheduler_.endpoint())) << output.err;
    EXPECT_TRUE(Has(output.err, "`holdfast up -d`")) << output.err;
  }
}

TEST_F(CliTest, ErrorsSayWhatFailedAndHaveTheirExitCodes) {
  const struct {
    grpc::StatusCode code;
    int exit_code;
  } cases[] = {{grpc::StatusCode::NOT_FOUND, 3},         {grpc::StatusCode::FAILED_PRECONDITION, 4},
               {grpc::StatusCode::INVALID_ARGUMENT, 2},  {grpc::StatusCode::RESOURCE_EXHAUSTED, 4},
               {grpc::StatusCode::PERMISSION_DENIED, 4}, {grpc::StatusCode::INTERNAL, 4},
               {grpc::StatusCode::UNIMPLEMENTED, 4}};
  for (const auto& c : cases) {
    scheduler_.Change(
        [&](FakeScheduler::Answers* a) { a->error = grpc::Status(c.code, "why it is so"); });
    const Output output = Holdfast({"cancel", "j-7"});
    EXPECT_EQ(output.code, c.exit_code) << output.err;
    EXPECT_EQ(output.err.substr(0, 28), "holdfast: cannot cancel j-7:") << output.err;
  }
  scheduler_.Change([](FakeScheduler::Answers* a) { a->error = grpc::Status::OK; });
  const Output missing = Holdfast({"describe", "j-9"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_EQ(missing.err, "holdfast: cannot describe j-9: no job j-9\n");
}

// --- submit

TEST_F(CliTest, SubmitPrintsTheIdAloneAndSendsACompleteSpec) {
  const Output output = Holdfast({"submit", "--nodes", "2", "--gpus-per-node", "8", "--name",
                                  "llama", "--env", "A=b=c", "--restarts", "0", "--time-limit",
                                  "2h", "--", "python", "train.py", "--nodes", "x"});
  ASSERT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, "j-1\n");
  EXPECT_TRUE(Has(output.err, "j-1 waits: needs 2 nodes, 1 is free")) << output.err;
  ASSERT_EQ(scheduler_.asked().submits.size(), 1u);
  const v1::SubmitJobRequest request = scheduler_.asked().submits[0];
  EXPECT_EQ(request.idempotency_key().size(), 32u);
  const v1::JobSpec& spec = request.spec();
  EXPECT_EQ(spec.name(), "llama");
  EXPECT_EQ(std::vector<std::string>(spec.command().begin(), spec.command().end()),
            (std::vector<std::string>{"python", "train.py", "--nodes", "x"}));
  EXPECT_EQ(spec.nodes(), 2u);
  EXPECT_EQ(spec.gpus_per_node(), 8u);
  EXPECT_EQ(spec.environment().at("A"), "b=c");
  EXPECT_EQ(spec.restarts_max(), 0u);
  EXPECT_TRUE(spec.has_restarts_max());
  EXPECT_EQ(spec.time_limit_s(), 7200u);
  EXPECT_EQ(spec.uid(), ::getuid());
  EXPECT_EQ(spec.gid(), ::getgid());
  EXPECT_EQ(spec.working_directory(), std::filesystem::current_path().string());
}

TEST_F(CliTest, FlagsWinOverTheFileAlsoWithZeroAndPathsAreRelativeToTheFile) {
  std::filesystem::create_directories(state_ / "jobs");
  WriteText(state_ / "jobs/job.yaml",
            "name: a\ncommand: [x, y]\ngpus_per_node: 8\nrestarts_max: 3\nworking_directory: "
            "work\nstore: ./ckpt\n");
  const Output output = Holdfast(
      {"submit", "-f", state_ / "jobs/job.yaml", "--gpus-per-node", "0", "--restarts", "0"});
  ASSERT_EQ(output.code, 0) << output.err;
  const v1::JobSpec spec = scheduler_.asked().submits.at(0).spec();
  EXPECT_EQ(spec.gpus_per_node(), 0u);
  EXPECT_EQ(spec.restarts_max(), 0u);
  EXPECT_EQ(spec.name(), "a");
  EXPECT_EQ(spec.working_directory(), state_ / "jobs/work");
  EXPECT_EQ(spec.store(), state_ / "jobs/ckpt");
}

TEST_F(CliTest, ErrorsOfAFileNameFileAndLine) {
  WriteText(state_ / "job.yaml", "command: [x]\nnodes: -1\n");
  const Output output = Holdfast({"submit", "-f", state_ / "job.yaml"});
  EXPECT_EQ(output.code, 2);
  EXPECT_EQ(output.err, "holdfast: " + state_ / "job.yaml" +
                            ":2: nodes: -1 is not a whole number from 1 to 4096\n");
}

TEST_F(CliTest, SubmitWaitGivesTheJobsEnd) {
  PutJob("j-1", v1::JOB_STATE_DONE);
  EXPECT_EQ(Holdfast({"submit", "--wait", "--", "x"}).code, 0);
  PutJob("j-1", v1::JOB_STATE_FAILED, "rank 0 exited with code 3");
  const Output failed = Holdfast({"submit", "--wait", "--", "x"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.out, "j-1\n");
  EXPECT_TRUE(Has(failed.err, "j-7 FAILED: rank 0 exited with code 3")) << failed.err;
}

TEST_F(CliTest, ADryRunOnlyAsks) {
  const Output output = Holdfast({"submit", "--dry-run", "--", "x"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_TRUE(scheduler_.asked().submits.at(0).validate_only());
}

TEST_F(CliTest, ATrainerConfigurationIsCheckedByTheWorkerFirst) {
  TemporaryDirectory bin;
  std::filesystem::copy_file(BuiltProgram("holdfast"), bin / "holdfast");
  WriteText(
      bin / "holdfast-worker",
      "#!/bin/sh\n[ \"$1 $3 $4\" = '--check --ranks 4' ] || { echo \"bad call $*\" >&2; exit 9; }\n"
      "grep -q good \"$2\" || { echo \"$2:1: tp: 3 does not divide 4 heads\" >&2; exit 2; }\n");
  std::filesystem::permissions(bin / "holdfast-worker", std::filesystem::perms::owner_all);
  WriteText(bin / "good.yaml", "good\n");
  WriteText(bin / "bad.yaml", "bad\n");
  const auto submit = [&](const std::string& config) {
    return RunToEnd(
        {bin / "holdfast", "submit", "--nodes", "2", "--gpus-per-node", "2", "--trainer", config},
        Environment());
  };
  const Output bad = submit(bin / "bad.yaml");
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err, "holdfast: " + bin / "bad.yaml" + ":1: tp: 3 does not divide 4 heads\n");
  EXPECT_TRUE(scheduler_.asked().submits.empty());
  const Output good = submit(bin / "good.yaml");
  ASSERT_EQ(good.code, 0) << good.err;
  const v1::JobSpec spec = scheduler_.asked().submits.at(0).spec();
  EXPECT_EQ(spec.trainer_config(), bin / "good.yaml");
  EXPECT_EQ(spec.persist_every_steps(), 100u);
}

// --- reading verbs

TEST_F(CliTest, JsonKeepsItsShape) {
  PutJob("j-7", v1::JOB_STATE_QUEUED, "waits");
  const Output ps = Holdfast({"ps", "--json"});
  EXPECT_EQ(ps.code, 0);
  EXPECT_TRUE(Has(ps.out, "{\"jobs\":[{\"id\":\"7\",\"spec\":{\"name\":\"llama\",")) << ps.out;
  EXPECT_TRUE(Has(ps.out, "\"state\":\"JOB_STATE_QUEUED\",\"reason\":\"waits\",\"attempt\":\"2\""))
      << ps.out;
  EXPECT_TRUE(Has(ps.out, "\"next_page_token\":\"\"}\n")) << ps.out;
  scheduler_.Change([](FakeScheduler::Answers* a) {
    v1::CheckpointInfo info;
    info.mutable_ref()->set_job(7);
    info.mutable_ref()->set_step(100);
    info.set_state("committed");
    a->checkpoints.push_back(info);
  });
  const Output describe = Holdfast({"describe", "j-7", "--json"});
  EXPECT_TRUE(Has(
      describe.out,
      "\"checkpoints\":[{\"ref\":{\"job\":\"7\",\"attempt\":\"0\",\"step\":\"100\"},"
      "\"state\":\"committed\",\"bytes\":\"0\",\"committed_wall_ns\":\"0\",\"store\":\"\"}]}\n"))
      << describe.out;
  EXPECT_EQ(Holdfast({"nodes", "--json"}).out, "{\"nodes\":[]}\n");
  EXPECT_EQ(Holdfast({"save", "j-7", "--json"}).out, "{\"job\":\"7\",\"attempt\":\"2\"}\n");
}

TEST_F(CliTest, PsFollowsAllPages) {
  for (const char* key : {"j-1", "j-2", "j-3"}) PutJob(key, v1::JOB_STATE_RUNNING);
  const Output ps = Holdfast({"ps"});
  EXPECT_EQ(std::count(ps.out.begin(), ps.out.end(), '\n'), 4) << ps.out;
  EXPECT_TRUE(Has(ps.out, "JOB  NAME   STATE")) << ps.out;
}

TEST_F(CliTest, DescribeTellsTheFiveTimesOfAnIncident) {
  PutJob("llama", v1::JOB_STATE_RUNNING);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    v1::JobStatus& job = a->jobs["llama"];
    v1::Incident* i = job.add_incidents();
    i->set_fault_class(v1::PROCESS_DIED);
    i->add_ranks(3);
    i->set_node("n1");
    i->set_what("rank 3 was killed by signal 9");
    i->set_noticed_ms(2);
    i->set_named_ms(3);
    i->set_stopped_ms(40);
    i->set_restored_ms(500);
    i->set_first_step_ms(1234);
    i->set_steps_lost(1);
    job.mutable_start_point()->set_source(v1::StartPoint::SOURCE_SNAPSHOT);
    job.mutable_start_point()->mutable_ref()->set_step(41);
    job.mutable_start_point()->mutable_ref()->set_attempt(1);
  });
  const Output output = Holdfast({"describe", "llama"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_TRUE(Has(output.out, "job           j-7  llama")) << output.out;
  EXPECT_TRUE(Has(output.out, "2, started from snapshot of step 41, attempt 1")) << output.out;
  for (const char* part : {"PROCESS_DIED", "2 ms", "3 ms", "40 ms", "500 ms", "1.2 s", "1 steps",
                           "rank 3 was killed by signal 9"}) {
    EXPECT_TRUE(Has(output.out, part)) << part << "\n" << output.out;
  }
}

TEST_F(CliTest, RestartSendsTheAttemptItSaw) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Holdfast({"restart", "j-7", "--from", "100"}).code, 0);
  const v1::RestartJobRequest request = scheduler_.asked().restarts.at(0);
  EXPECT_EQ(request.expected_attempt(), 2u);
  EXPECT_EQ(request.from_step(), 100u);
}

TEST_F(CliTest, DrainSendsItsReason) {
  const Output output = Holdfast({"drain", "n3", "--reason", "fan of gpu2"});
  EXPECT_EQ(output.code, 0);
  EXPECT_EQ(output.err, "n3 DRAINING: fan of gpu2\n");
  EXPECT_EQ(scheduler_.asked().drains.at(0).reason(), "fan of gpu2");
}

// --- waiting and streams

TEST_F(CliTest, WaitLastsAcrossARestartOfTheScheduler) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  RunningProgram wait(Command({"wait", "j-7"}), Environment());
  ASSERT_TRUE(WaitUntil([&] { return !scheduler_.asked().watches.empty(); }));
  scheduler_.Stop();
  PutJob("j-7", v1::JOB_STATE_DONE);
  scheduler_.Start();
  const Output output = wait.Wait();
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_TRUE(Has(output.err, "j-7 DONE")) << output.err;
}

TEST_F(CliTest, WaitWakesByEvent) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  RunningProgram wait(Command({"wait", "j-7"}), Environment());
  ASSERT_TRUE(WaitUntil([&] { return !scheduler_.asked().watches.empty(); }));
  PutJob("j-7", v1::JOB_STATE_CANCELLED);
  PutEvent(5, "job.cancelled");
  EXPECT_EQ(wait.Wait().code, 1);
}

TEST_F(CliTest, CtrlCEndsWaitingButNotTheJob) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  RunningProgram wait(Command({"wait", "j-7"}), Environment());
  ASSERT_TRUE(WaitUntil([&] { return !scheduler_.asked().watches.empty(); }));
  ::kill(wait.pid(), SIGINT);
  const Output output = wait.Wait();
  EXPECT_EQ(output.code, 130);
  EXPECT_TRUE(Has(output.err, "holdfast wait j-7")) << output.err;
  EXPECT_TRUE(scheduler_.asked().cancels.empty());
}

TEST_F(CliTest, EventsResumeWhereTheStreamBroke) {
  for (uint64_t i = 1; i <= 5; ++i) PutEvent(i, "node.ready");
  scheduler_.Change([](FakeScheduler::Answers* a) { a->events_per_stream = 2; });
  const Output output = Holdfast({"events", "--json"});
  EXPECT_EQ(output.code, 0) << output.err;
  const std::vector<std::string> lines = absl::StrSplit(output.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u) << output.out;
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(Has(lines[i], absl::StrCat("{\"sequence\":\"", i + 1, "\","))) << lines[i];
  }
  const auto watches = scheduler_.asked().watches;
  ASSERT_GE(watches.size(), 3u);
  EXPECT_EQ(watches[1].after_sequence(), 2u);
  EXPECT_EQ(watches[2].after_sequence(), 4u);
}

TEST_F(CliTest, FollowedEventsGoOnAfterARestartOfTheScheduler) {
  PutEvent(1, "node.ready");
  RunningProgram events(Command({"events", "-f", "--job", "j-7"}), Environment());
  ASSERT_TRUE(WaitUntil([&] { return Has(events.OutSoFar(), "text 1\n"); }));
  scheduler_.Stop();
  PutEvent(2, "job.done");
  scheduler_.Start();
  ASSERT_TRUE(WaitUntil([&] { return Has(events.OutSoFar(), "text 2\n"); })) << events.OutSoFar();
  ::kill(events.pid(), SIGINT);
  const Output output = events.Wait();
  EXPECT_EQ(output.code, 130);
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 2) << output.out;
  EXPECT_TRUE(Has(output.out, "1  2023-11-14T22:13:20.123Z  node.ready  j-7  text 1\n"))
      << output.out;
  EXPECT_TRUE(Has(output.err, "--after 2")) << output.err;
  EXPECT_EQ(scheduler_.asked().watches.at(0).job(), "j-7");
}

TEST_F(CliTest, LogsEndWithTheirReason) {
  PutJob("j-7", v1::JOB_STATE_DONE);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    a->log_streams = {{Chunk(0, "hello\nwor"), Chunk(0, "ld\n"), End("job DONE")}};
  });
  const Output output = Holdfast({"logs", "j-7"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, "hello\nworld\n");
  EXPECT_EQ(output.err, "-- job DONE\n");
}

TEST_F(CliTest, LinesOfSeveralRanksCarryTheirRankAndStayWhole) {
  PutJob("j-7", v1::JOB_STATE_DONE);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    a->jobs["j-7"].mutable_spec()->set_gpus_per_node(2);
    a->log_streams = {{Chunk(0, "ab"), Chunk(1, "x\n"), Chunk(0, "c\nopen"), End("job DONE")}};
  });
  EXPECT_EQ(Holdfast({"logs", "j-7"}).out, "1| x\n0| abc\n0| open\n");
  const Output wrong = Holdfast({"logs", "j-7", "--rank", "2"});
  EXPECT_EQ(wrong.code, 3);
  EXPECT_TRUE(Has(wrong.err, "--rank: 2 is not a rank of j-7, which has 0 to 1")) << wrong.err;
}

TEST_F(CliTest, ABrokenLogStreamIsResumedWithoutGapOrRepetition) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    a->log_streams = {{Chunk(0, "one\ntwo\n", 100)},
                      {Chunk(0, "two\nthree\n", 104), End("job DONE")}};
  });
  const Output output = Holdfast({"logs", "-f", "j-7", "--tail", "2"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, "one\ntwo\nthree\n");
  const auto asked = scheduler_.asked().logs;
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].tail_lines(), 2);
  ASSERT_EQ(asked[1].resume_size(), 1);
  EXPECT_EQ(asked[1].resume(0).offset(), 108u);
}

TEST_F(CliTest, LogsSinceAMomentOrALongTimeAgo) {
  PutJob("j-7", v1::JOB_STATE_DONE);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    a->log_streams = {{End("job DONE")}, {End("job DONE")}};
  });
  EXPECT_EQ(Holdfast({"logs", "j-7", "--since", "2001-09-09T01:46:40Z"}).code, 0);
  EXPECT_EQ(Holdfast({"logs", "j-7", "--since", "2h"}).code, 0);
  const auto asked = scheduler_.asked().logs;
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].since_wall_ns(), 1'000'000'000 * kNsPerSec);
  EXPECT_LE(asked[1].since_wall_ns(), SystemClock().WallNs() - 7200 * kNsPerSec);
  EXPECT_GT(asked[1].since_wall_ns(), SystemClock().WallNs() - 7300 * kNsPerSec);
  const Output wrong = Holdfast({"logs", "j-7", "--since", "yesterday"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(Has(wrong.err, "--since: 'yesterday' is neither")) << wrong.err;
}

TEST_F(CliTest, ABrokenLogStreamNeverEndsWithZero) {
  PutJob("j-7", v1::JOB_STATE_RUNNING);
  scheduler_.Change([](FakeScheduler::Answers* a) { a->log_streams = {{Chunk(0, "one\n")}, {}}; });
  const Output ended = Holdfast({"logs", "j-7"});
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_EQ(ended.out, "one\n");
  EXPECT_TRUE(Has(ended.err, "broke before its end")) << ended.err;
  // Without offsets a tail cannot be resumed.
  scheduler_.Change([](FakeScheduler::Answers* a) { a->log_streams = {{Chunk(0, "one\n")}}; });
  EXPECT_EQ(Holdfast({"logs", "-f", "j-7", "--tail", "1"}).code, 5);
  scheduler_.Change([](FakeScheduler::Answers* a) {
    a->log_streams = {{Chunk(0, "one\n"), End("truncated: node n1 LOST")}};
  });
  EXPECT_EQ(Holdfast({"logs", "j-7"}).code, 5);
}

// --- programs of their own

TEST_F(CliTest, OtherProgramsAreRunInPlace) {
  TemporaryDirectory bin;
  std::filesystem::copy_file(BuiltProgram("holdfast"), bin / "holdfast");
  WriteText(bin / "holdfast-ckpt", "#!/bin/sh\necho \"ckpt $*\"\nexit 3\n");
  std::filesystem::permissions(bin / "holdfast-ckpt", std::filesystem::perms::owner_all);
  const Output output = RunToEnd({bin / "holdfast", "ckpt", "ls", "--json", "--", "-x"});
  EXPECT_EQ(output.code, 3);
  EXPECT_EQ(output.out, "ckpt ls --json -- -x\n");
  const Output missing = RunToEnd({bin / "holdfast", "data", "build"}, {"PATH=/nonexistent"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_TRUE(Has(missing.err, "holdfast-data was not found beside holdfast (" + bin.path() + ")"))
      << missing.err;
}

TEST_F(CliTest, TheVersionIsPrinted) {
  EXPECT_TRUE(Has(Holdfast({"version"}).out, "holdfast 0."));
  EXPECT_TRUE(Has(Holdfast({"version", "--json"}).out, "{\"version\":\"0."));
  EXPECT_EQ(Holdfast({"--version"}).out, Holdfast({"version"}).out);
}

TEST_F(CliTest, HelpIsAlsoAWord) {
  EXPECT_EQ(Holdfast({"help"}).out, Holdfast({"--help"}).out);
  EXPECT_EQ(Holdfast({"help", "submit"}).out, Holdfast({"submit", "--help"}).out);
  EXPECT_EQ(Holdfast({"help"}).code, 0);
}

}  // namespace
}  // namespace holdfast::cli
