// SPDX-License-Identifier: Apache-2.0
#include "proto/fence.h"

namespace holdfast::proto {

v1::FenceMode EffectiveFence(const v1::JobSpec& spec) {
  if (spec.fence() != v1::FENCE_MODE_UNSPECIFIED) return spec.fence();
  return spec.trainer_config().empty() ? v1::FENCE_MODE_WITNESS : v1::FENCE_MODE_COMMIT;
}

}  // namespace holdfast::proto
