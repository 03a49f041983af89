// SPDX-License-Identifier: Apache-2.0
#include "cli/notify/incident_command.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cli/output.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

constexpr size_t kErrorShownBytes = 500;

}  // namespace

absl::Status RunIncidentCommand(const std::string& command, const v1::Event& event) {
  ProgramOptions options;
  options.deadline_ms = kIncidentCommandMs;
  options.input = absl::StrCat(ToJson(event), "\n");
  options.environment =
      EnvironmentWith({"HOLDFAST_JOB", "HOLDFAST_INCIDENT", "HOLDFAST_EVENT"},
                      {absl::StrCat("HOLDFAST_JOB=", ToString(JobId{event.job()})),
                       absl::StrCat("HOLDFAST_INCIDENT=", event.incident().id()),
                       absl::StrCat("HOLDFAST_EVENT=", event.sequence())});
  HF_ASSIGN_OR_RETURN(const ProgramResult result, RunProgram({"/bin/sh", "-c", command}, options));
  if (result.exit_code == 0) return absl::OkStatus();
  const std::string& text = result.error_output;
  return absl::UnavailableError(
      absl::StrCat("the command for incidents ended with ", result.exit_code, ": ",
                   text.substr(text.size() - std::min(text.size(), kErrorShownBytes))));
}

IncidentCommand::IncidentCommand(std::string command) : command_(std::move(command)) {
  if (!command_.empty()) thread_ = std::thread([this] { Run(); });
}

IncidentCommand::~IncidentCommand() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    end_ns_ = SystemClock().MonoNs() + kIncidentCommandMs * kNsPerMs;
    changed_.NotifyAll();
  }
  thread_.join();
}

void IncidentCommand::Add(const v1::Event& event) {
  if (!thread_.joinable() || event.kind() != "incident.opened") return;
  const MutexLock lock(mutex_);
  if (queue_.size() >= kIncidentsQueuedMax) {
    Hint(absl::StrCat("holdfast: the command for incidents is too slow: incident ",
                      queue_.front().incident().id(), " is not told"));
    queue_.pop_front();
  }
  queue_.push_back(event);
  changed_.NotifyAll();
}

void IncidentCommand::Run() {
  const SystemClock clock;
  while (true) {
    v1::Event event;
    {
      const MutexLock lock(mutex_);
      while (queue_.empty() && !ending_) changed_.Wait(mutex_);
      if (queue_.empty() || (ending_ && clock.MonoNs() >= end_ns_)) return;
      event = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Status done = RunIncidentCommand(command_, event);
    if (!done.ok()) Hint(absl::StrCat("holdfast: ", done.message()));
  }
}

}  // namespace holdfast::cli
