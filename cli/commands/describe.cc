// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "proto/job_spec.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

// "name        value" lines; empty values are left out.
class Facts {
 public:
  void Add(const std::string& name, const std::string& value) {
    if (!value.empty() && value != "-") absl::StrAppendFormat(&text_, "%-12s  %s\n", name, value);
  }
  void Section(const std::string& title, const std::string& body) {
    if (body.empty()) return;
    absl::StrAppend(&text_, title, "\n");
    for (const absl::string_view line : absl::StrSplit(body, '\n'))
      absl::StrAppend(&text_, "  ", line, "\n");
  }
  std::string Text() { return text_.empty() ? text_ : text_.substr(0, text_.size() - 1); }

 private:
  std::string text_;
};

std::string Stamp(int64_t wall_ns, int64_t now) {
  return wall_ns == 0 ? "" : absl::StrCat(Rfc3339(wall_ns), " (", Ago(wall_ns, now), ")");
}

std::string WhatRuns(const v1::JobSpec& spec) {
  return spec.trainer_config().empty() ? absl::StrJoin(spec.command(), " ")
                                       : absl::StrCat("trainer ", spec.trainer_config());
}

std::string SavingOf(const v1::JobSpec& spec) {
  if (spec.snapshot_every_steps() == 0) return "";
  return absl::StrCat("snapshot every ", spec.snapshot_every_steps(), " steps, ",
                      spec.persist_every_steps() == 0
                          ? "persisted when asked"
                          : absl::StrCat("persisted every ", spec.persist_every_steps()));
}

std::string PlacementOf(const v1::Placement& placement) {
  std::vector<std::string> lines;
  for (const v1::NodePlacement& node : placement.nodes()) {
    const std::string ranks =
        absl::StrJoin(node.ranks(), ", ", [](std::string* out, const v1::RankPlacement& r) {
          absl::StrAppend(out, "rank ", r.rank(), r.device_id().empty() ? "" : " on ",
                          r.device_id());
        });
    lines.push_back(absl::StrCat(node.node(), ": ", ranks));
  }
  return absl::StrJoin(lines, "\n");
}

// A time that has not been reached yet is 0.
std::string Time(double ms) { return ms > 0 ? ShortDuration(ms) : "-"; }

std::string IncidentsOf(const v1::JobStatus& job) {
  if (job.incidents_size() == 0) return "";
  Table table({"#", "WHEN", "CLASS", "RANKS", "NODE", "NOTICED", "NAMED", "STOPPED", "RESTORED",
               "FIRST STEP", "LOST", "WHAT"});
  for (const v1::Incident& i : job.incidents()) {
    table.Add({absl::StrCat(i.id()), Rfc3339(i.begin_wall_ns()), Short(i.fault_class()),
               i.ranks_size() == 0 ? "-" : absl::StrJoin(i.ranks(), ","),
               i.node().empty() ? "-" : i.node(), Time(i.noticed_ms()), Time(i.named_ms()),
               Time(i.stopped_ms()), Time(i.restored_ms()), Time(i.first_step_ms()),
               absl::StrCat(i.steps_lost(), " steps"),
               i.repeats() == 0 ? i.what()
                                : absl::StrCat(i.what(), " (and ", i.repeats(), " before it)")});
  }
  return table.Text();
}

std::string CheckpointsOf(const v1::ListCheckpointsResponse& checkpoints, int64_t now) {
  if (checkpoints.checkpoints_size() == 0) return "";
  Table table({"CHECKPOINT", "STATE", "SIZE", "COMMITTED", "STORE"});
  for (const v1::CheckpointInfo& c : checkpoints.checkpoints()) {
    table.Add({Text(c.ref()), c.state(), proto::FormatBytes(c.bytes()),
               Ago(c.committed_wall_ns(), now), c.store()});
  }
  return table.Text();
}

std::string TextOf(const v1::JobStatus& job, const v1::ListCheckpointsResponse& checkpoints) {
  const int64_t now = SystemClock().WallNs();
  const v1::JobSpec& spec = job.spec();
  Facts facts;
  facts.Add("job", absl::StrCat(ToString(JobId{job.id()}), "  ", spec.name()));
  facts.Add("state",
            absl::StrCat(Short(job.state()), job.reason().empty() ? "" : ": ", job.reason()));
  facts.Add("runs", WhatRuns(spec));
  facts.Add("asks for", absl::StrCat(spec.nodes(), " nodes, ", proto::RanksPerNode(spec),
                                     " ranks and ", spec.gpus_per_node(), " GPUs each"));
  if (job.attempt() > 0)
    facts.Add("attempt", absl::StrCat(job.attempt(), ", started from ", Text(job.start_point())));
  if (job.step() > 0)
    facts.Add("step", absl::StrCat(job.step(), absl::StrFormat(", loss %.6g", job.loss())));
  facts.Add("restarts", absl::StrCat(job.restarts(), " used, ", job.restarts_left(), " left"));
  facts.Add("saving", SavingOf(spec));
  facts.Add("snapshot", Text(job.newest_snapshot()));
  facts.Add("checkpoint", Text(job.newest_checkpoint()));
  if (job.saves_committed() + job.saves_aborted() + job.snapshots_skipped() > 0) {
    facts.Add("saves", absl::StrCat(job.saves_committed(), " committed, ", job.saves_aborted(),
                                    " aborted, ", job.snapshots_skipped(), " snapshots skipped"));
  }
  facts.Add("submitted", Stamp(job.submitted_wall_ns(), now));
  facts.Add("started", Stamp(job.started_wall_ns(), now));
  facts.Add("ended", Stamp(job.ended_wall_ns(), now));
  if (job.state() == v1::JOB_STATE_FAILED && job.exit_code() != 0)
    facts.Add("exit code", absl::StrCat(job.exit_code()));
  facts.Section("placement", PlacementOf(job.placement()));
  facts.Section("incidents", IncidentsOf(job));
  facts.Section("checkpoints", CheckpointsOf(checkpoints, now));
  facts.Section("last lines of the first failing rank", job.last_stderr());
  return facts.Text();
}

// A JobStatus with one more key, "checkpoints".
std::string JsonOf(const v1::JobStatus& job, const v1::ListCheckpointsResponse& checkpoints) {
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(ToJson(job));
  out["checkpoints"] = nlohmann::ordered_json::parse(ToJson(checkpoints))["checkpoints"];
  return out.dump();
}

int Describe(const Invocation& invocation, const std::string& name) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  v1::GetJobRequest get;
  get.set_job(name);
  auto job = (*client)->Call(absl::StrCat("describe ", name), &v1::Scheduler::Stub::GetJob, get);
  if (!job.ok()) return Fail(job.status());
  v1::ListCheckpointsRequest list;
  list.set_job(ToString(JobId{job->id()}));
  auto checkpoints = (*client)->Call(absl::StrCat("list the checkpoints of ", name),
                                     &v1::Scheduler::Stub::ListCheckpoints, list);
  if (!checkpoints.ok()) return Fail(checkpoints.status());
  return PrintLine(invocation.json ? JsonOf(*job, *checkpoints) : TextOf(*job, *checkpoints))
             ? kExitDone
             : kExitRefused;
}

}  // namespace

void AddDescribe(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "describe",
                      "All about a job: why it waits, where it runs, what happened, what is saved",
                      "  holdfast describe j-42\n"
                      "  holdfast describe llama --json | jq .incidents\n");
  auto job = std::make_shared<std::string>();
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.Then([=] { invocation->run = [=] { return Describe(*invocation, *job); }; });
}

}  // namespace holdfast::cli
