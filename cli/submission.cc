// SPDX-License-Identifier: Apache-2.0
#include "cli/submission.h"

#include <errno.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "proto/job_spec.h"
#include "proto/modes.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kTrainerCheckMs = 60'000;

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.resize(static_cast<size_t>(kSpecBytesMax) + 1);
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(std::cin.gcount()));
    return text;
  }
  auto file = PosixFileSystem()->OpenForRead(path);
  if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("-f: ", file.status().message()));
  text.resize(static_cast<size_t>(kSpecBytesMax) + 1);
  auto size = (*file)->ReadAt(0, text.data(), text.size());
  if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat("-f: ", size.status().message()));
  text.resize(*size);
  return text;
}

// Paths in a job file are relative to the file, so that a job can be submitted from anywhere.
absl::StatusOr<v1::JobSpec> FromFile(const std::string& path) {
  HF_ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path));
  HF_ASSIGN_OR_RETURN(v1::JobSpec spec, proto::ParseJobYaml(text, path == "-" ? "stdin" : path));
  std::string base = WorkingDirectory();
  if (path != "-") {
    const std::string absolute = AbsolutePath(path, base);
    base = absolute.substr(0, std::max<size_t>(1, absolute.rfind('/')));
  }
  for (std::string* field :
       {spec.mutable_trainer_config(), spec.mutable_working_directory(), spec.mutable_store()}) {
    if (!field->empty()) *field = AbsolutePath(*field, base);
  }
  return spec;
}

// The flags as one line of YAML each: the ranges, units and words of a job file and of flags are
// the same by construction.
class FlagReader {
 public:
  void Add(const std::string& flag, const std::string& field, const std::string& value) {
    if (!value.empty()) flags_.push_back({flag, field, value});
  }
  absl::Status MergeInto(v1::JobSpec* spec) const {
    for (const Flag& flag : flags_) {
      YAML::Emitter yaml;
      yaml << YAML::BeginMap << YAML::Key << flag.field << YAML::Value << YAML::DoubleQuoted
           << flag.value << YAML::EndMap;
      auto one = proto::ParseJobYaml(yaml.c_str(), flag.flag);
      if (!one.ok()) return Reworded(flag, one.status());
      // Merging alone would keep the file's 8 under a flag's 0.
      spec->GetReflection()->ClearField(spec,
                                        v1::JobSpec::descriptor()->FindFieldByName(flag.field));
      spec->MergeFrom(*one);
    }
    return absl::OkStatus();
  }

 private:
  struct Flag {
    std::string flag, field, value;
  };
  // "--nodes:1: nodes: 0 is not ..." becomes "--nodes: 0 is not ...".
  static absl::Status Reworded(const Flag& flag, const absl::Status& status) {
    const std::string message(status.message());
    const std::string head = absl::StrCat(flag.flag, ":1: ", flag.field, ": ");
    return absl::InvalidArgumentError(
        message.rfind(head, 0) == 0 ? absl::StrCat(flag.flag, ": ", message.substr(head.size()))
                                    : message);
  }
  std::vector<Flag> flags_;
};

absl::Status ApplyFlags(const Submission& s, v1::JobSpec* spec) {
  FlagReader flags;
  flags.Add("--name", "name", s.name);
  flags.Add("--nodes", "nodes", s.nodes);
  flags.Add("--gpus-per-node", "gpus_per_node", s.gpus_per_node);
  flags.Add("--ranks-per-node", "ranks_per_node", s.ranks_per_node);
  flags.Add("--restarts", "restarts_max", s.restarts);
  flags.Add("--snapshot-every", "snapshot_every_steps", s.snapshot_every);
  flags.Add("--persist-every", "persist_every_steps", s.persist_every);
  flags.Add("--priority", "priority", s.priority);
  flags.Add("--grace", "grace_s", s.grace);
  flags.Add("--time-limit", "time_limit_s", s.time_limit);
  flags.Add("--fence-after", "fence_ms", s.fence_after);
  flags.Add("--hang-limit", "hang_limit_ms", s.hang_limit);
  flags.Add("--log-bytes", "log_bytes_per_rank", s.log_bytes);
  flags.Add("--fence", "fence", s.fence);
  flags.Add("--from", "from", s.from);
  flags.Add("--standby", "standby", s.standby);
  const std::string here = WorkingDirectory();
  if (!s.trainer.empty()) flags.Add("--trainer", "trainer_config", AbsolutePath(s.trainer, here));
  if (!s.working_directory.empty())
    flags.Add("--workdir", "working_directory", AbsolutePath(s.working_directory, here));
  if (!s.store.empty()) flags.Add("--store", "store", AbsolutePath(s.store, here));
  // What to run is replaced as a whole: a command on the line takes the place of the file's
  // trainer, and the other way round.
  if (!s.command.empty() || !s.trainer.empty()) spec->clear_command();
  if (!s.command.empty()) spec->clear_trainer_config();
  HF_RETURN_IF_ERROR(flags.MergeInto(spec));
  for (const std::string& word : s.command) spec->add_command(word);
  if (s.requeue.has_value()) {
    spec->set_requeue(*s.requeue);
    spec->set_has_requeue(true);
  }
  if (!s.modes.empty()) {
    const auto modes = proto::ParseModes(s.modes);
    if (!modes.ok()) return Annotate(modes.status(), "--modes");
    for (const auto& [cause, mode] : *modes) (*spec->mutable_modes())[cause] = mode;
  }
  if (s.expects_checkpoints) spec->set_expects_checkpoints(true);
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(const Submission& s, v1::JobSpec* spec) {
  for (const std::string& entry : s.environment) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      (*spec->mutable_environment())[entry.substr(0, equals)] = entry.substr(equals + 1);
      continue;
    }
    const char* value = std::getenv(entry.c_str());
    if (value == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env: ", entry, " is not set here; give NAME=VALUE, or set it first"));
    }
    (*spec->mutable_environment())[entry] = value;
  }
  return absl::OkStatus();
}

absl::Status ApplyCaller(v1::JobSpec* spec) {
  spec->set_uid(::getuid());
  spec->set_gid(::getgid());
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, count)));
  const int got = count > 0 ? ::getgroups(count, groups.data()) : count;
  if (got < 0) return ErrnoStatus(errno, "getgroups");
  spec->mutable_groups()->Assign(groups.begin(), groups.begin() + got);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::JobSpec> BuildSpec(const Submission& submission) {
  v1::JobSpec spec;
  if (!submission.file.empty()) {
    HF_ASSIGN_OR_RETURN(spec, FromFile(submission.file));
  }
  // Checked apart: a file with both a command and a trainer is wrong even when a flag would hide
  // one of them.
  if (spec.command_size() > 0 && !spec.trainer_config().empty())
    return Annotate(proto::ValidateJobSpec(&spec), submission.file);
  if (!submission.trainer.empty() && !submission.command.empty()) {
    return absl::InvalidArgumentError(
        "--trainer: a job runs either a command or a trainer configuration; remove one of the two");
  }
  HF_RETURN_IF_ERROR(ApplyFlags(submission, &spec));
  HF_RETURN_IF_ERROR(ApplyEnvironment(submission, &spec));
  HF_RETURN_IF_ERROR(ApplyCaller(&spec));
  if (spec.working_directory().empty()) spec.set_working_directory(WorkingDirectory());
  const absl::Status valid = proto::ValidateJobSpec(&spec);
  if (!valid.ok())
    return submission.file.empty()
               ? valid
               : Annotate(valid, submission.file == "-" ? "stdin" : submission.file);
  return spec;
}

absl::Status CheckTrainer(const v1::JobSpec& spec) {
  if (spec.trainer_config().empty()) return absl::OkStatus();
  auto worker = FindProgram("holdfast-worker");
  if (!worker.ok()) {
    Hint(absl::StrCat("holdfast: ", spec.trainer_config(),
                      " was not checked: ", worker.status().message()));
    return absl::OkStatus();
  }
  const uint64_t ranks = static_cast<uint64_t>(spec.nodes()) * proto::RanksPerNode(spec);
  ProgramOptions options;
  options.deadline_ms = kTrainerCheckMs;
  auto result = RunProgram(
      {*worker, "--check", spec.trainer_config(), "--ranks", absl::StrCat(ranks)}, options);
  if (!result.ok()) return Annotate(result.status(), "cannot check the trainer configuration");
  if (result->exit_code == 0) return absl::OkStatus();
  const std::string error(absl::StripAsciiWhitespace(result->error_output));
  return absl::InvalidArgumentError(
      error.empty() ? absl::StrCat(*worker, " --check ", spec.trainer_config(), " ended with ",
                                   result->exit_code, " and no message")
                    : error);
}

}  // namespace holdfast::cli
