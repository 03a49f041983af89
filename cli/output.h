// SPDX-License-Identifier: Apache-2.0
// How results and errors are written: data on stdout, everything else on stderr; tables for people,
// proto3 JSON with the original field names for programs. No colour, so there is nothing to switch
// off.
#ifndef HOLDFAST_CLI_OUTPUT_H_
#define HOLDFAST_CLI_OUTPUT_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

// One line, all fields, enums by name, 64-bit numbers as strings (proto3 JSON).
std::string ToJson(const google::protobuf::Message& message);

// Writes all of `text` and a newline to stdout, or stderr. False when the reader is gone (head, a
// closed pipe).
bool PrintLine(std::string_view text);
bool PrintBytes(std::string_view bytes);
void Hint(std::string_view text);
// "holdfast: <message>" on stderr; the exit code that goes with it.
int Fail(const absl::Status& status);

// Columns padded to their widest cell, two blanks between, no trailing blanks.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "3m ago", "in 3m"; "-" for 0.
std::string Ago(int64_t wall_ns, int64_t now_wall_ns);
// RFC 3339 in UTC with milliseconds; "-" for 0.
std::string Rfc3339(int64_t wall_ns);
// "350 ms", "12.3 s", "4m10s".
std::string ShortDuration(double ms);

// "RUNNING" of JOB_STATE_RUNNING; the same for nodes and fault classes.
std::string Short(v1::JobState state);
std::string Short(v1::NodeState state);
std::string Short(v1::FaultClass fault_class);
// "scratch", "snapshot 100.3", "checkpoint j-42@100.3".
std::string Text(const v1::StartPoint& point);
// "j-42@100.3", or "-" when unset.
std::string Text(const v1::CheckpointRef& ref);
// "n0 n1".
std::string Text(const v1::Placement& placement);

// The job has ended for good: no later state can follow.
bool IsEnded(const v1::JobStatus& job);
// 0 for DONE, 1 for another end.
int ExitCodeOfEnd(const v1::JobStatus& job);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_OUTPUT_H_
