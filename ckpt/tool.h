// SPDX-License-Identifier: Apache-2.0
// The holdfast-ckpt program: looks into a store directory, with no daemon. Never changes anything.
// `read` is for programs: docs/formats/store.md says what it takes and gives.
#ifndef HOLDFAST_CKPT_TOOL_H_
#define HOLDFAST_CKPT_TOOL_H_

#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace holdfast::ckpt {

enum ToolExit : int { kToolDone = 0, kToolProblem = 1, kToolUsage = 2, kToolNotFound = 3 };

// `arguments` without the program's name. Results go to `out`, errors (one line) to `err`; `read`
// takes what it shall read from `in`.
int RunTool(FileSystem* fs, const std::vector<std::string>& arguments, std::istream& in,
            std::ostream& out, std::ostream& err);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_TOOL_H_
