// SPDX-License-Identifier: Apache-2.0
// Job specifications: YAML in, validated message out. The only place that decides what a legal job
// is; the command line calls it before sending and the scheduler again on what it receives.
#ifndef HOLDFAST_PROTO_JOB_SPEC_H_
#define HOLDFAST_PROTO_JOB_SPEC_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::proto {

// Parses one YAML document. `origin` (a file name) begins every error: "job.yaml:7: nodes: -1 is
// not a whole number from 1 to 4096". An unknown field is an error that names the nearest known
// one. Field names are JobSpec's; command is a list or a string that is split like a shell would
// without expansions.
absl::StatusOr<v1::JobSpec> ParseJobYaml(std::string_view text, std::string_view origin);

// Checks ranges, contradictions (command and trainer_config, persist not a multiple of snapshot
// interval, ...) and fills in defaults. Errors name field, value and what is allowed.
absl::Status ValidateJobSpec(v1::JobSpec* spec);

// A legal job name made of a file's name, or `otherwise` when nothing of it will do.
std::string JobNameOf(std::string_view file, std::string_view otherwise);

// Set for every rank by Holdfast: a job that sets it is refused.
bool IsReservedEnvironment(std::string_view name);

// One for each GPU; without GPUs as many as asked for, else one.
uint32_t RanksPerNode(const v1::JobSpec& spec);

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_JOB_SPEC_H_
