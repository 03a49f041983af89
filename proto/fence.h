// SPDX-License-Identifier: Apache-2.0
// By which rule an attempt may be replaced while its ranks may still run: the scheduler waits by
// it, the agent sets deadlines by it, so it stands here once. docs/job.md explains the modes.
#ifndef HOLDFAST_PROTO_FENCE_H_
#define HOLDFAST_PROTO_FENCE_H_

#include "holdfast/v1/common.pb.h"

namespace holdfast::proto {

// The mode in force: commit for a trainer, witness for a command, unless the job says.
v1::FenceMode EffectiveFence(const v1::JobSpec& spec);

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_FENCE_H_
