// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <errno.h>
#include <google/protobuf/util/json_util.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/exit_code.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string WithoutPrefix(const std::string& name, const char* prefix) {
  return absl::StartsWith(name, prefix) ? name.substr(std::string_view(prefix).size()) : name;
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string out;
  const auto status = google::protobuf::util::MessageToJsonString(message, &out, options);
  return status.ok() ? out
                     : absl::StrCat("{\"error\":\"", message.GetTypeName(), " has no JSON form\"}");
}

bool PrintLine(std::string_view text) { return WriteAll(STDOUT_FILENO, std::string(text) + "\n"); }
bool PrintBytes(std::string_view bytes) { return WriteAll(STDOUT_FILENO, bytes); }
// A closed stderr must not change the result of a command.
void Hint(std::string_view text) { (void)WriteAll(STDERR_FILENO, std::string(text) + "\n"); }

int Fail(const absl::Status& status) {
  Hint(absl::StrCat("holdfast: ", status.message()));
  return ExitCodeOf(status);
}

std::string Table::Text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  if (!out.empty()) out.pop_back();
  return out;
}

std::string Ago(int64_t wall_ns, int64_t now_wall_ns) {
  if (wall_ns == 0) return "-";
  const int64_t seconds = (now_wall_ns - wall_ns) / kNsPerSec;
  if (seconds < 0) return absl::StrCat("in ", proto::FormatDurationMs(-seconds * 1000));
  // Two units are enough for a person: "3h5m", not "3h5m12s".
  const int64_t unit = seconds >= 86'400 ? 3600 : seconds >= 3600 ? 60 : 1;
  return absl::StrCat(seconds == 0 ? "0s" : proto::FormatDurationMs(seconds / unit * unit * 1000),
                      " ago");
}

std::string Rfc3339(int64_t wall_ns) {
  if (wall_ns == 0) return "-";
  const time_t seconds = wall_ns / kNsPerSec;
  struct tm utc {};
  if (::gmtime_r(&seconds, &utc) == nullptr) return "-";
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                         (wall_ns % kNsPerSec) / kNsPerMs);
}

std::string ShortDuration(double ms) {
  if (ms < 1000) return absl::StrFormat("%.0f ms", ms);
  if (ms < 60'000) return absl::StrFormat("%.1f s", ms / 1000);
  return proto::FormatDurationMs(static_cast<int64_t>(ms / 1000) * 1000);
}

std::string Short(v1::JobState state) {
  return WithoutPrefix(v1::JobState_Name(state), "JOB_STATE_");
}
std::string Short(v1::NodeState state) {
  return WithoutPrefix(v1::NodeState_Name(state), "NODE_STATE_");
}
std::string Short(v1::FaultClass fault_class) {
  return WithoutPrefix(v1::FaultClass_Name(fault_class), "FAULT_CLASS_");
}

std::string Text(const v1::CheckpointRef& ref) {
  if (ref.job() == 0 && ref.step() == 0) return "-";
  return ToString(CheckpointId{JobId{ref.job()}, ref.attempt(), ref.step()});
}

std::string Text(const v1::StartPoint& point) {
  switch (point.source()) {
    case v1::StartPoint::SOURCE_SCRATCH:
      return "scratch";
    case v1::StartPoint::SOURCE_SNAPSHOT:
      return absl::StrCat("snapshot of step ", point.ref().step(), ", attempt ",
                          point.ref().attempt());
    case v1::StartPoint::SOURCE_CHECKPOINT:
      return absl::StrCat("checkpoint ", Text(point.ref()));
    default:
      return "-";
  }
}

std::string Text(const v1::Placement& placement) {
  if (placement.nodes_size() == 0) return "-";
  return absl::StrJoin(placement.nodes(), " ",
                       [](std::string* out, const v1::NodePlacement& n) { *out += n.node(); });
}

bool IsEnded(const v1::JobStatus& job) {
  switch (job.state()) {
    case v1::JOB_STATE_DONE:
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_CANCELLED:
      return true;
    case v1::JOB_STATE_PREEMPTED:
      return !job.spec().requeue();
    default:
      return false;
  }
}

int ExitCodeOfEnd(const v1::JobStatus& job) {
  return job.state() == v1::JOB_STATE_DONE ? kExitDone : kExitJobFailed;
}

}  // namespace holdfast::cli
