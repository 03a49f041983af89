// SPDX-License-Identifier: Apache-2.0
#include "cli/run_request.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"
#include "base/status.h"

namespace holdfast::cli {
namespace {

constexpr int kGpusLookedFor = 64;

enum class Meaning {
  kText,    // kept as it is, in `text`
  kSwitch,  // sets `given`
  kNodes,
  kRanks,
  kMaxRestarts,
  kShownRanks,
  kNodeRank,
  kStandalone,
  kEndpoint,  // kept as it is; without effect on one machine
  kNoEffect,  // taken, and said to have none
  kImplied,   // what it asks for is always so: nothing to say
};

struct Flag {
  const char* name;   // with dashes
  const char* value;  // what stands for it in the help; null: a switch
  Meaning meaning;
  const char* help;  // for kNoEffect: why
  std::string RunRequest::*text = nullptr;
  bool RunRequest::*given = nullptr;
};

constexpr char kFreshPort[] = "each attempt meets at a fresh port that Holdfast serves itself";
constexpr char kEvents[] = "ends of ranks are noticed by event, not by looking again";
constexpr char kLogs[] = "logs are kept under the state directory (--state), one file a rank";
constexpr char kModule[] = "what follows is a module, as for python -m";

constexpr Flag kFlags[] = {
    {"--nproc-per-node", "N", Meaning::kRanks, "ranks: a number, auto, gpu or cpu (default 1)"},
    {"--max-restarts", "N", Meaning::kMaxRestarts,
     "restarts, whatever the reason; without it 100, and a script that keeps failing in the same "
     "way ends"},
    {"--module", nullptr, Meaning::kSwitch, kModule, nullptr, &RunRequest::module},
    {"-m", nullptr, Meaning::kSwitch, kModule, nullptr, &RunRequest::module},
    {"--no-python", nullptr, Meaning::kSwitch, "what follows is a program of its own", nullptr,
     &RunRequest::no_python},
    {"--role", "NAME", Meaning::kText, "ROLE_NAME of the ranks", &RunRequest::role},
    {"--local-ranks-filter", "0,2", Meaning::kShownRanks, "whose output is shown (default all)"},
    {"--state", "DIR", Meaning::kText,
     "keeps logs and state there (default: a temporary directory)", &RunRequest::state},
    {"--name", "NAME", Meaning::kText, "name of the job (default: the script's)",
     &RunRequest::name},
    {"--grace", "30s", Meaning::kText, "time to save before a time limit ends the job",
     &RunRequest::grace},
    {"--time-limit", "2h", Meaning::kText, "ends the job", &RunRequest::time_limit},
    {"--standby", "MODULES", Meaning::kText,
     "a process for each rank that waits to take its place, with these imported; auto (default): "
     "what the script begins with; none",
     &RunRequest::standby},
    {"--notify", "COMMAND", Meaning::kText,
     "run by sh for each incident, which it gets as JSON on its standard input",
     &RunRequest::notify},
    {"--modes", "MODES", Meaning::kText,
     "what is done about ranks that hang or are stopped: observe (default), act, or by cause as in "
     "hang=act,stopped=observe (docs/observe.md)",
     &RunRequest::modes},
    {"--log-limit", "1GiB", Meaning::kText,
     "kept of each rank's output; what comes faster than it can be shown is dropped beyond it",
     &RunRequest::log_limit},
    {"--nnodes", "N", Meaning::kNodes,
     "nodes of the job, or MIN:MAX with spares, in a Slurm step or in pods (docs/slurm.md)"},
    {"--node-rank", "N", Meaning::kNodeRank, "of this node, in pods"},
    {"--shared-dir", "DIR", Meaning::kText, "where the tasks of a Slurm step find each other",
     &RunRequest::shared_dir},
    {"--fence-after", "30s", Meaning::kText,
     "how long a node may be cut off before it stops its ranks", &RunRequest::fence_after},
    {"--standalone", nullptr, Meaning::kStandalone, ""},
    {"--run-path", nullptr, Meaning::kImplied, ""},
    {"--rdzv-backend", "X", Meaning::kNoEffect, kFreshPort},
    {"--rdzv-endpoint", "X", Meaning::kEndpoint, kFreshPort, &RunRequest::rdzv_endpoint},
    {"--rdzv-id", "X", Meaning::kNoEffect, kFreshPort},
    {"--rdzv-conf", "X", Meaning::kNoEffect, kFreshPort},
    {"--master-addr", "X", Meaning::kEndpoint, kFreshPort, &RunRequest::master_addr},
    {"--master-port", "X", Meaning::kEndpoint, kFreshPort, &RunRequest::master_port},
    {"--local-addr", "X", Meaning::kEndpoint, kFreshPort, &RunRequest::local_addr},
    {"--monitor-interval", "X", Meaning::kNoEffect, kEvents},
    {"--start-method", "X", Meaning::kNoEffect, "ranks are always started by exec"},
    {"--event-log-handler", "X", Meaning::kNoEffect, "see `holdfast events`"},
    {"--logs-specs", "X", Meaning::kNoEffect, kLogs},
    {"--log-dir", "X", Meaning::kNoEffect, kLogs},
    {"--redirects", "X", Meaning::kNoEffect, kLogs},
    {"-r", "X", Meaning::kNoEffect, kLogs},
    {"--tee", "X", Meaning::kNoEffect, kLogs},
    {"-t", "X", Meaning::kNoEffect, kLogs},
};

const Flag* FindFlag(std::string name) {
  if (name.rfind("--", 0) == 0) std::replace(name.begin(), name.end(), '_', '-');
  const auto found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                  [&](const Flag& flag) { return name == flag.name; });
  return found == std::end(kFlags) ? nullptr : found;
}

absl::Status Bad(const std::string& flag, const std::string& value, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", value, "\" is ", what));
}

absl::Status ReadNumber(const std::string& flag, const std::string& value, uint32_t low,
                        uint32_t high, uint32_t* out) {
  if (absl::SimpleAtoi(value, out) && *out >= low && *out <= high) return absl::OkStatus();
  return Bad(flag, value, absl::StrCat("not a whole number from ", low, " to ", high));
}

absl::Status ReadRanks(const std::string& flag, const std::string& value,
                       const MachineSize& machine, uint32_t* out) {
  const auto limit = static_cast<uint32_t>(kRanksPerNodeMax);
  if (value == "gpu" && machine.gpus == 0)
    return Bad(flag, value, "not possible: this machine shows no GPU (/dev/nvidia0)");
  if (value == "gpu" || (value == "auto" && machine.gpus > 0)) {
    *out = std::min(machine.gpus, limit);
    return absl::OkStatus();
  }
  if (value == "cpu" || value == "auto") {
    *out = std::min(machine.cpus, limit);
    return absl::OkStatus();
  }
  uint32_t ranks = 0;
  if (!absl::SimpleAtoi(value, &ranks) || ranks == 0 || ranks > limit)
    return Bad(flag, value, absl::StrCat("not auto, gpu, cpu or a number from 1 to ", limit));
  *out = ranks;
  return absl::OkStatus();
}

// N, or MIN:MAX as torchrun takes it.
absl::Status ReadNodes(const std::string& flag, const std::string& value, RunRequest* out) {
  const size_t colon = value.find(':');
  const std::string low = value.substr(0, colon);
  const std::string high = colon == std::string::npos ? low : value.substr(colon + 1);
  constexpr auto kMost = static_cast<uint32_t>(kNodesPerJobMax);
  if (absl::SimpleAtoi(low, &out->nodes_min) && absl::SimpleAtoi(high, &out->nodes_max) &&
      out->nodes_min >= 1 && out->nodes_min <= out->nodes_max && out->nodes_max <= kMost)
    return absl::OkStatus();
  return Bad(flag, value, absl::StrCat("not a number from 1 to ", kMost, ", or MIN:MAX of these"));
}

absl::Status ReadShownRanks(const std::string& flag, const std::string& value,
                            std::vector<uint32_t>* out) {
  for (const absl::string_view word : absl::StrSplit(value, ',', absl::SkipWhitespace())) {
    uint32_t rank = 0;
    HF_RETURN_IF_ERROR(ReadNumber(flag, std::string(word), 0, kRanksPerNodeMax - 1, &rank));
    out->push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status Take(const Flag& flag, const std::string& written, const std::string& value,
                  const MachineSize& machine, RunRequest* out) {
  uint32_t number = 0;
  switch (flag.meaning) {
    case Meaning::kNodes:
      return ReadNodes(written, value, out);
    case Meaning::kRanks:
      return ReadRanks(written, value, machine, &out->ranks);
    case Meaning::kMaxRestarts:
      HF_RETURN_IF_ERROR(ReadNumber(written, value, 0, 1'000'000, &number));
      out->max_restarts = number;
      return absl::OkStatus();
    case Meaning::kShownRanks:
      return ReadShownRanks(written, value, &out->shown_ranks);
    case Meaning::kNodeRank:
      HF_RETURN_IF_ERROR(ReadNumber(written, value, 0, kNodesPerJobMax - 1, &number));
      out->node_rank = number;
      return absl::OkStatus();
    case Meaning::kStandalone:
      out->nodes_min = out->nodes_max = 1;
      return absl::OkStatus();
    case Meaning::kEndpoint:
      out->*flag.text = value;
      out->without_effect.push_back(absl::StrCat(written, " has no effect: ", flag.help));
      return absl::OkStatus();
    case Meaning::kText:
      if (value.empty()) return Bad(written, value, "empty");
      out->*flag.text = value;
      return absl::OkStatus();
    case Meaning::kSwitch:
      out->*flag.given = true;
      return absl::OkStatus();
    case Meaning::kNoEffect:
      out->without_effect.push_back(absl::StrCat(written, " has no effect: ", flag.help));
      return absl::OkStatus();
    case Meaning::kImplied:
      return absl::OkStatus();
  }
  return absl::InternalError("a flag without a meaning");
}

absl::Status Check(const RunRequest& request) {
  if (request.program.empty()) {
    return absl::InvalidArgumentError(
        "no script; as in: holdfast run --nproc-per-node 4 train.py --epochs 3");
  }
  if (request.module && request.no_python)
    return absl::InvalidArgumentError("--no-python: not together with --module");
  for (const uint32_t rank : request.shown_ranks) {
    if (rank >= request.ranks) {
      return Bad("--local-ranks-filter", absl::StrCat(rank),
                 absl::StrCat("not one of the ranks 0 to ", request.ranks - 1));
    }
  }
  return absl::OkStatus();
}

std::string FindInPath(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const absl::string_view directory :
       absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':', absl::SkipEmpty())) {
    std::string candidate = absl::StrCat(directory, "/", name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// As exec looks for it. NOT_FOUND, beginning with `what`: before a rank is started in vain.
absl::Status CheckProgram(const std::string& what, const std::string& name) {
  const bool found = name.find('/') == std::string::npos ? !FindInPath(name).empty()
                                                         : ::access(name.c_str(), X_OK) == 0;
  if (found) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(what, name, ": no such program, or it cannot be executed"));
}

absl::StatusOr<std::string> FindPython() {
  if (const char* named = std::getenv("PYTHON_EXEC"); named != nullptr && *named != '\0') {
    HF_RETURN_IF_ERROR(CheckProgram("PYTHON_EXEC: ", named));
    return std::string(named);
  }
  // `python` first: in a virtual environment both are there, and outside one it is what the user
  // calls python.
  for (const char* name : {"python", "python3"}) {
    if (std::string found = FindInPath(name); !found.empty()) return found;
  }
  return absl::NotFoundError(
      "no python and no python3 in PATH; activate the environment, name one with PYTHON_EXEC, or "
      "run a program of its own with --no-python");
}

}  // namespace

MachineSize ReadMachineSize() {
  MachineSize size;
  while (size.gpus < kGpusLookedFor &&
         ::access(absl::StrCat("/dev/nvidia", size.gpus).c_str(), F_OK) == 0)
    ++size.gpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    size.cpus = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  return size;
}

absl::StatusOr<RunRequest> ParseRun(const std::vector<std::string>& arguments,
                                    const MachineSize& machine) {
  RunRequest request;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const size_t equals = word.rfind("--", 0) == 0 ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const Flag* flag = FindFlag(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", name,
                       "; `holdfast run --help` lists them, and what is the "
                       "script's own goes behind the script"));
    }
    std::string value;
    if (equals != std::string::npos) {
      if (flag->value == nullptr)
        return Bad(name, word.substr(equals + 1), "not wanted: a flag alone");
      value = word.substr(equals + 1);
    } else if (flag->value != nullptr) {
      if (i + 1 == arguments.size())
        return absl::InvalidArgumentError(absl::StrCat(name, ": its value is missing"));
      value = arguments[++i];
    }
    HF_RETURN_IF_ERROR(Take(*flag, name, value, machine, &request));
  }
  request.program.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
  HF_RETURN_IF_ERROR(Check(request));
  return request;
}

std::string RunFlagsHelp() {
  std::string out = "Flags (dashes and underscores in names are the same):\n";
  std::string ignored;
  for (const Flag& flag : kFlags) {
    if (flag.meaning == Meaning::kNoEffect || flag.meaning == Meaning::kEndpoint) {
      absl::StrAppend(&ignored, ignored.empty() ? "" : " ", flag.name);
    } else if (flag.help[0] != '\0') {
      const std::string words =
          flag.value == nullptr ? flag.name : absl::StrCat(flag.name, " ", flag.value);
      absl::StrAppend(&out, absl::StrFormat("  %-26s%s\n", words, flag.help));
    }
  }
  return absl::StrCat(out,
                      "Also taken, since they say what is so anyway: "
                      "--standalone --run-path\n"
                      "Taken without effect, each with a sentence why: ",
                      ignored, "\n");
}

absl::StatusOr<std::vector<std::string>> CommandOf(const RunRequest& request) {
  std::vector<std::string> command;
  if (!request.no_python) {
    HF_ASSIGN_OR_RETURN(const std::string python, FindPython());
    command = {python, "-u"};
    if (request.module) {
      command.emplace_back("-m");
    } else if (::access(request.program[0].c_str(), R_OK) != 0) {
      return absl::NotFoundError(
          absl::StrCat(request.program[0], ": no such script, or it cannot be read"));
    }
  } else {
    HF_RETURN_IF_ERROR(CheckProgram("", request.program[0]));
  }
  command.insert(command.end(), request.program.begin(), request.program.end());
  return command;
}

}  // namespace holdfast::cli
