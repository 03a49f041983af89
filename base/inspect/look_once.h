// SPDX-License-Identifier: Apache-2.0
// One process at the second of two looks: what it did in between and what it waits for.
//
// Errors: what is another user's is missing in it. Threads: any.
#ifndef HOLDFAST_BASE_INSPECT_LOOK_ONCE_H_
#define HOLDFAST_BASE_INSPECT_LOOK_ONCE_H_

#include <sys/types.h>

#include <cstdint>

#include "base/inspect/judge.h"
#include "base/inspect/proc_fs.h"
#include "base/inspect/sample.h"
#include "base/inspect/wait.h"

namespace holdfast::inspect {

// `before`: the first look, `elapsed_ns` earlier.
Looked LookOnce(const ProcFs& proc, const ProcessSample& now, const Sample& before,
                int64_t elapsed_ns, PipeWriters* writers);

}  // namespace holdfast::inspect

#endif  // HOLDFAST_BASE_INSPECT_LOOK_ONCE_H_
