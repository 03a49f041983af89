// SPDX-License-Identifier: Apache-2.0
// In a build without the checkpoint engine (HOLDFAST_CONTROL_PLANE=OFF).
#include "tests/rank/state.h"

namespace holdfast::test_rank {

bool RestoreFromStore(const std::string& where, const std::vector<ckpt::TensorView>&, uint64_t*,
                      uint64_t*, std::string* reason) {
  *reason =
      "checkpoint:" + where + ": this build has no checkpoint engine (HOLDFAST_CONTROL_PLANE=OFF)";
  return false;
}

}  // namespace holdfast::test_rank
