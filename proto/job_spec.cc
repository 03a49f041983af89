// SPDX-License-Identifier: Apache-2.0
#include "proto/job_spec.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/job_fields.h"
#include "proto/modes.h"
#include "proto/text.h"

namespace holdfast::proto {
namespace {

constexpr int64_t kStepsMax = 1'000'000'000;
constexpr int64_t kRestartsMaxLimit = 1'000'000;
constexpr int64_t kPriorityLimit = 1'000'000;
constexpr int64_t kDayMs = 86'400'000;
constexpr int64_t kDayS = 86'400;
constexpr int64_t kTimeLimitMaxS = 365 * 10 * kDayS;
constexpr int64_t kLogBytesMin = 64 << 10;
constexpr int64_t kLogBytesMax = int64_t{1} << 40;
constexpr int kGroupsMax = 65'536;  // NGROUPS_MAX

constexpr uint32_t kRestartsMaxDefault = 100;
constexpr uint32_t kSnapshotEveryDefault = 1;
constexpr uint32_t kPersistEveryDefault = 100;
constexpr uint32_t kGraceSDefault = 30;
constexpr size_t kNameBytesMax = 63;

constexpr NumberField kNumberFields[] = {
    {"nodes", NumberKind::kCount, 1, kNodesPerJobMax, true},
    {"gpus_per_node", NumberKind::kCount, 0, kRanksPerNodeMax, false},
    {"ranks_per_node", NumberKind::kCount, 1, kRanksPerNodeMax, true},
    {"restarts_max", NumberKind::kCount, 0, kRestartsMaxLimit, false},
    {"snapshot_every_steps", NumberKind::kCount, 1, kStepsMax, true},
    {"persist_every_steps", NumberKind::kCount, 1, kStepsMax, true},
    {"fence_ms", NumberKind::kDurationMs, 1000, kDayMs, true},
    {"grace_s", NumberKind::kDurationS, 1, kDayS, true},
    {"time_limit_s", NumberKind::kDurationS, 1, kTimeLimitMaxS, true},
    {"hang_limit_ms", NumberKind::kDurationMs, 1000, kDayMs, true},
    {"log_bytes_per_rank", NumberKind::kBytes, kLogBytesMin, kLogBytesMax, true},
    {"priority", NumberKind::kCount, -kPriorityLimit, kPriorityLimit, false},
};

// Set for every rank by Holdfast; a job that sets them contradicts its own placement.
constexpr std::string_view kReservedEnvironment[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "HOLDFAST_JOB",
    "HOLDFAST_ATTEMPT",
    "HOLDFAST_SOCKET",
    "HOLDFAST_STATE_UUID",
    "HOLDFAST_RESTORE",
    "HOLDFAST_STORE_DIR",
    "HOLDFAST_SNAPSHOT_EVERY",
    "HOLDFAST_PERSIST_EVERY",
    "HOLDFAST_STEPS_LOG",
    "HOLDFAST_CKPT",
};

absl::Status Bad(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(field.data(), field.size()),
                                                 ": ",
                                                 absl::string_view(what.data(), what.size())));
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShownBytesMax = 120;
  std::string out = "\"";
  for (const char c : text.substr(0, kShownBytesMax)) {
    out.push_back(std::iscntrl(static_cast<unsigned char>(c)) != 0 ? '?' : c);
  }
  return absl::StrCat(out, text.size() > kShownBytesMax ? "...\"" : "\"");
}

// Strings of a message must be UTF-8 (protobuf refuses others on the wire) and argv and environment
// end at a NUL.
absl::Status CheckText(std::string_view field, const std::string& text) {
  if (!IsUtf8(text)) return Bad(field, "holds bytes that are not UTF-8");
  if (text.find('\0') != std::string::npos) return Bad(field, "holds a NUL byte");
  return absl::OkStatus();
}

absl::Status CheckPath(std::string_view field, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(CheckText(field, path));
  if (path[0] != '/') return Bad(field, absl::StrCat(Quoted(path), " is not an absolute path"));
  return absl::OkStatus();
}

absl::Status CheckNumber(const char* name, int64_t value) {
  const NumberField& field = *FindNumberField(name);
  if (value == 0 && field.zero_is_unset) return absl::OkStatus();
  if (value >= field.low && value <= field.high) return absl::OkStatus();
  return Bad(name, absl::StrCat(Shown(field, value), " is not ", Allowed(field)));
}

absl::Status CheckNumbers(const v1::JobSpec& s) {
  HF_RETURN_IF_ERROR(CheckNumber("nodes", s.nodes()));
  HF_RETURN_IF_ERROR(CheckNumber("gpus_per_node", s.gpus_per_node()));
  HF_RETURN_IF_ERROR(CheckNumber("ranks_per_node", s.ranks_per_node()));
  if (s.ranks_per_node() > 0 && s.gpus_per_node() > 0) {
    return Bad("ranks_per_node",
               absl::StrCat(s.ranks_per_node(), " beside gpus_per_node ", s.gpus_per_node(),
                            ": each GPU has one rank; remove one of the two"));
  }
  if (s.ranks_per_node() > 1 && !s.trainer_config().empty())
    return Bad("ranks_per_node", "the trainer runs one rank for each GPU; use gpus_per_node");
  HF_RETURN_IF_ERROR(CheckNumber("restarts_max", s.restarts_max()));
  HF_RETURN_IF_ERROR(CheckNumber("snapshot_every_steps", s.snapshot_every_steps()));
  HF_RETURN_IF_ERROR(CheckNumber("persist_every_steps", s.persist_every_steps()));
  HF_RETURN_IF_ERROR(CheckNumber("fence_ms", s.fence_ms()));
  HF_RETURN_IF_ERROR(CheckNumber("grace_s", s.grace_s()));
  HF_RETURN_IF_ERROR(CheckNumber("time_limit_s", s.time_limit_s()));
  HF_RETURN_IF_ERROR(CheckNumber("hang_limit_ms", s.hang_limit_ms()));
  const uint64_t log_bytes = s.log_bytes_per_rank();
  if (log_bytes > INT64_MAX) {
    return Bad("log_bytes_per_rank", absl::StrCat(log_bytes, " is not ",
                                                  Allowed(*FindNumberField("log_bytes_per_rank"))));
  }
  HF_RETURN_IF_ERROR(CheckNumber("log_bytes_per_rank", static_cast<int64_t>(log_bytes)));
  return CheckNumber("priority", s.priority());
}

absl::Status CheckWhatRuns(const v1::JobSpec& s) {
  const bool trainer = !s.trainer_config().empty();
  if (trainer && s.command_size() > 0) {
    return Bad("trainer_config",
               "a job runs either a command or a trainer configuration; remove one of the two");
  }
  if (!trainer && s.command_size() == 0) {
    return Bad("command", "a job needs a command (after --) or a trainer_config (--trainer)");
  }
  HF_RETURN_IF_ERROR(CheckPath("trainer_config", s.trainer_config()));
  if (s.command_size() > kArgsMax) {
    return Bad("command",
               absl::StrCat(s.command_size(), " arguments are more than the limit of ", kArgsMax));
  }
  for (int i = 0; i < s.command_size(); ++i)
    HF_RETURN_IF_ERROR(CheckText(absl::StrCat("command[", i, "]"), s.command(i)));
  if (!trainer && s.command(0).empty()) return Bad("command[0]", "the program's name is empty");
  return absl::OkStatus();
}

absl::Status CheckEnvironment(const v1::JobSpec& s) {
  if (s.environment_size() > kEnvEntriesMax) {
    return Bad("environment",
               absl::StrCat(s.environment_size(), " variables are more than the limit of ",
                            kEnvEntriesMax));
  }
  for (const auto& [name, value] : s.environment()) {
    if (!IsEnvironmentName(name)) {
      return Bad("environment",
                 absl::StrCat(Quoted(name), " is not a variable name ([A-Za-z_][A-Za-z0-9_]*)"));
    }
    const std::string field = absl::StrCat("environment.", name);
    HF_RETURN_IF_ERROR(CheckText(field, value));
    if (IsReservedEnvironment(name)) {
      return Bad(field, "is set by Holdfast for each rank; remove it");
    }
    if (name == "CUDA_VISIBLE_DEVICES" && s.gpus_per_node() > 0) {
      return Bad(field, "is set by placement when gpus_per_node is not 0; remove one of the two");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSaving(const v1::JobSpec& s) {
  const uint32_t snapshot = s.snapshot_every_steps();
  const uint32_t persist = s.persist_every_steps();
  if (persist != 0 && snapshot == 0) {
    return Bad(
        "persist_every_steps",
        absl::StrCat(persist, " needs snapshot_every_steps: a snapshot is what gets persisted"));
  }
  if (persist != 0 && persist % snapshot != 0) {
    return Bad("persist_every_steps",
               absl::StrCat(persist, " is not a multiple of snapshot_every_steps (", snapshot,
                            "): only steps with a snapshot can be persisted"));
  }
  if (s.expects_checkpoints() && snapshot == 0) {
    return Bad("expects_checkpoints",
               "true needs snapshot_every_steps, else there is nothing to commit");
  }
  return absl::OkStatus();
}

// Names of modules and commas between them; "auto" and "none" look like one.
absl::Status CheckStandby(const v1::JobSpec& s) {
  const std::string& text = s.standby();
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ',';
  };
  if (!std::all_of(text.begin(), text.end(), allowed))
    return Bad("standby",
               absl::StrCat(Quoted(text), " is not auto, none or modules as in torch,numpy"));
  if (!s.trainer_config().empty() && !text.empty() && text != "none")
    return Bad("standby",
               absl::StrCat(Quoted(text), " is for a Python command, not for the native trainer"));
  return absl::OkStatus();
}

absl::Status CheckRest(const v1::JobSpec& s) {
  if (!IsValidName(s.name())) {
    return Bad("name", absl::StrCat(Quoted(s.name()),
                                    " is not 1 to 63 of the characters A-Z a-z 0-9 . _ -, the "
                                    "first a letter or digit"));
  }
  if (ParseJobId(s.name()).ok())
    return Bad("name", absl::StrCat(Quoted(s.name()), " is the form of a job's id"));
  HF_RETURN_IF_ERROR(CheckPath("working_directory", s.working_directory()));
  HF_RETURN_IF_ERROR(CheckPath("store", s.store()));
  HF_RETURN_IF_ERROR(CheckText("user", s.user()));
  HF_RETURN_IF_ERROR(CheckStandby(s));
  HF_RETURN_IF_ERROR(CheckModes(s.modes()));
  if (s.fence() != v1::FENCE_MODE_COMMIT && s.fence() != v1::FENCE_MODE_WITNESS) {
    return Bad("fence",
               absl::StrCat(static_cast<int>(s.fence()), " is not one of commit, witness"));
  }
  if (!s.from().empty()) {
    auto id = ParseCheckpointName(s.from());
    if (!id.ok()) return Bad("from", absl::StrCat(Quoted(s.from()), " is ", id.status().message()));
  }
  if (s.cpus_per_rank_size() > 0)
    return Bad("cpus_per_rank", "pinning is not part of this version; remove the field");
  if (s.groups_size() > kGroupsMax) {
    return Bad("groups",
               absl::StrCat(s.groups_size(), " groups are more than the limit of ", kGroupsMax));
  }
  if (static_cast<int64_t>(s.ByteSizeLong()) > kSpecBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job's description has ", s.ByteSizeLong(), " bytes, more than the limit of ",
        kSpecBytesMax, "; pass large values in files instead of arguments or environment"));
  }
  return absl::OkStatus();
}

// The file's name of what runs, made a legal job name.
std::string DefaultName(const v1::JobSpec& s) {
  std::string path =
      s.trainer_config().empty() ? (s.command_size() > 0 ? s.command(0) : "") : s.trainer_config();
  path = path.substr(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/') + 1);
  if (!s.trainer_config().empty()) path = path.substr(0, path.find_last_of('.'));
  return JobNameOf(path, "job");
}

void FillDefaults(v1::JobSpec* s) {
  const bool trainer = !s->trainer_config().empty();
  if (s->name().empty()) s->set_name(DefaultName(*s));
  if (s->nodes() == 0) s->set_nodes(1);
  if (s->working_directory().empty()) s->set_working_directory("/");
  if (!s->has_restarts_max()) s->set_restarts_max(kRestartsMaxDefault);
  s->set_has_restarts_max(true);
  if (!s->has_requeue()) s->set_requeue(true);
  s->set_has_requeue(true);
  if (s->fence() == v1::FENCE_MODE_UNSPECIFIED)
    s->set_fence(trainer ? v1::FENCE_MODE_COMMIT : v1::FENCE_MODE_WITNESS);
  if (s->fence_ms() == 0) s->set_fence_ms(static_cast<uint32_t>(kFenceMsDefault));
  if (s->grace_s() == 0) s->set_grace_s(kGraceSDefault);
  if (s->log_bytes_per_rank() == 0) s->set_log_bytes_per_rank(kLogBytesPerRankDefault);
  if (!trainer) return;
  s->set_expects_checkpoints(true);
  if (s->snapshot_every_steps() == 0) s->set_snapshot_every_steps(kSnapshotEveryDefault);
  if (s->persist_every_steps() == 0) {
    const uint64_t snapshot = s->snapshot_every_steps();
    const uint64_t persist = (kPersistEveryDefault + snapshot - 1) / snapshot * snapshot;
    s->set_persist_every_steps(static_cast<uint32_t>(std::min<uint64_t>(persist, UINT32_MAX)));
  }
}

}  // namespace

const NumberField* FindNumberField(std::string_view name) {
  for (const NumberField& field : kNumberFields) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

std::string Shown(const NumberField& field, int64_t value) {
  switch (field.kind) {
    case NumberKind::kDurationMs:
      return FormatDurationMs(value);
    case NumberKind::kDurationS:
      return FormatDurationMs(value * 1000);
    case NumberKind::kBytes:
      return value < 1024 || value % 1024 != 0 ? absl::StrCat(value)
                                               : FormatBytes(static_cast<uint64_t>(value));
    case NumberKind::kCount:
      break;
  }
  return absl::StrCat(value);
}

std::string Allowed(const NumberField& field) {
  const std::string range =
      absl::StrCat("from ", Shown(field, field.low), " to ", Shown(field, field.high));
  switch (field.kind) {
    case NumberKind::kDurationMs:
    case NumberKind::kDurationS:
      return absl::StrCat("a duration ", range, ", such as 90s or 10m");
    case NumberKind::kBytes:
      return absl::StrCat("a size ", range, ", such as 64MiB");
    case NumberKind::kCount:
      break;
  }
  return absl::StrCat("a whole number ", range);
}

absl::Status ValidateJobSpec(v1::JobSpec* spec) {
  HF_RETURN_IF_ERROR(CheckWhatRuns(*spec));
  HF_RETURN_IF_ERROR(CheckNumbers(*spec));
  HF_RETURN_IF_ERROR(CheckEnvironment(*spec));
  FillDefaults(spec);
  HF_RETURN_IF_ERROR(CheckSaving(*spec));
  return CheckRest(*spec);
}

std::string JobNameOf(std::string_view file, std::string_view otherwise) {
  std::string name;
  for (const char c : file.substr(0, kNameBytesMax)) {
    const bool legal =
        static_cast<unsigned char>(c) < 128 &&
        (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-');
    name.push_back(legal ? c : '-');
  }
  return IsValidName(name) && !ParseJobId(name).ok() ? name : std::string(otherwise);
}

bool IsReservedEnvironment(std::string_view name) {
  return std::find(std::begin(kReservedEnvironment), std::end(kReservedEnvironment), name) !=
         std::end(kReservedEnvironment);
}

uint32_t RanksPerNode(const v1::JobSpec& spec) {
  return spec.gpus_per_node() > 0 ? spec.gpus_per_node() : std::max(1u, spec.ranks_per_node());
}

}  // namespace holdfast::proto
