// SPDX-License-Identifier: Apache-2.0
#ifndef HOLDFAST_AGENT_VERSION_H_
#define HOLDFAST_AGENT_VERSION_H_

namespace holdfast::agent {

inline constexpr char kAgentVersion[] = "0.1.0";

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_VERSION_H_
