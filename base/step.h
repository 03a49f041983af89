// SPDX-License-Identifier: Apache-2.0
// What is different for our processes inside a step of a workload manager (docs/slurm.md). Slurm
// sends a signal of its own to every process of a step: a TERM, USR1 or INT that is meant for the
// job reaches scheduler, agent, keeper and rendezvous store too, and must not end what the job
// still needs. `holdfast run` decides what a signal means; the others end by SIGQUIT, which it
// sends them, by the end of a pipe, or by SIGKILL. libc only.
#ifndef HOLDFAST_BASE_STEP_H_
#define HOLDFAST_BASE_STEP_H_

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace holdfast {

inline constexpr char kInStepVariable[] = "HOLDFAST_IN_STEP";  // "1" in our own processes there
inline constexpr int kStepSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

inline bool InStep() {
  const char* value = std::getenv(kInStepVariable);
  return value != nullptr && value[0] == '1';
}

// Ignored, not blocked: a blocked signal would still be read from a signalfd.
inline void IgnoreStepSignals() {
  for (const int signal : kStepSignals) std::signal(signal, SIG_IGN);
}

// The signals that end a daemon in order. In a step the others are ignored from here on.
inline sigset_t DaemonStopSignals() {
  sigset_t set;
  sigemptyset(&set);
  if (InStep()) {
    IgnoreStepSignals();
    sigaddset(&set, SIGQUIT);
  } else {
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
  }
  return set;
}

// What the workload manager sets for each node by itself: a rank gets the value of the node where
// it runs, never that of the node that submitted.
inline bool IsNodeEnvironment(std::string_view name) {
  constexpr std::string_view kNames[] = {"CUDA_VISIBLE_DEVICES",
                                         "ROCR_VISIBLE_DEVICES",
                                         "HIP_VISIBLE_DEVICES",
                                         "GPU_DEVICE_ORDINAL",
                                         "ZE_AFFINITY_MASK",
                                         "HOSTNAME",
                                         "TMPDIR",
                                         "SLURMD_NODENAME",
                                         "NODE_NAME",
                                         "POD_NAME",
                                         "POD_IP",
                                         "JOB_COMPLETION_INDEX"};
  for (const std::string_view known : kNames) {
    if (name == known) return true;
  }
  return name.substr(0, 6) == "SLURM_";
}

}  // namespace holdfast

#endif  // HOLDFAST_BASE_STEP_H_
