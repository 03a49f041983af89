// SPDX-License-Identifier: Apache-2.0
// Named places where a test can make this process die, to prove that what follows a crash there is
// right.
//
//   HF_KILL_POINT("ckpt.commit.rename:before");
//
// Off unless the environment variable HOLDFAST_KILL_POINT names the point ("name" or "name#3": the
// third time it is reached); then the process raises SIGKILL on itself. Reading the environment
// happens once. Cost when off: one relaxed load. Names: <module>.<step>:before|after.
#ifndef HOLDFAST_BASE_FAULT_POINT_H_
#define HOLDFAST_BASE_FAULT_POINT_H_

namespace holdfast {

bool KillPointsArmed();
void KillPointReached(const char* name);

}  // namespace holdfast

#define HF_KILL_POINT(name)                                                \
  do {                                                                     \
    if (::holdfast::KillPointsArmed()) ::holdfast::KillPointReached(name); \
  } while (false)

#endif  // HOLDFAST_BASE_FAULT_POINT_H_
