// SPDX-License-Identifier: Apache-2.0
// What is done about causes that are found while the ranks still live: written down, or acted on.
// Names, text form and defaults, for the command line, job files and the scheduler alike.
// docs/observe.md explains them. Pure; threads: any.
#ifndef HOLDFAST_PROTO_MODES_H_
#define HOLDFAST_PROTO_MODES_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/map.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::proto {

inline constexpr char kCauseHang[] = "hang";        // a rank differs from its own past
inline constexpr char kCauseStopped[] = "stopped";  // SIGSTOP or a freezer
inline constexpr char kModesAllowed[] =
    "observe or act, for all causes, or CAUSE=MODE with commas between them, a cause being hang or "
    "stopped";

using Modes = std::map<std::string, v1::CauseMode>;
using ModesField = google::protobuf::Map<std::string, v1::CauseMode>;

const std::vector<std::string>& KnownCauses();
// "act", "observe", "hang=act,stopped=observe". INVALID_ARGUMENT with the text and what is allowed.
absl::StatusOr<Modes> ParseModes(std::string_view text);
// INVALID_ARGUMENT naming an unknown cause or mode.
absl::Status CheckModes(const ModesField& modes);

// The job's own word, else the cluster's, else: stopped ranks are recovered, hangs are observed.
v1::CauseMode EffectiveMode(const v1::JobSpec& spec, const Modes& cluster,
                            const std::string& cause);

std::string ModeName(v1::CauseMode mode);  // "observe", "act"

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_MODES_H_
