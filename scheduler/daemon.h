// SPDX-License-Identifier: Apache-2.0
// The scheduler as a process: state directory with its lock, store, engine, loops, server. Start in
// order, stop in reverse.
//
// Threads: Start and Stop from one thread; loops and gRPC have their own, all joined by Stop.
#ifndef HOLDFAST_SCHEDULER_DAEMON_H_
#define HOLDFAST_SCHEDULER_DAEMON_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "proto/modes.h"
#include "scheduler/background/node_prober.h"
#include "scheduler/background/ticker.h"
#include "scheduler/core_lock.h"
#include "scheduler/service.h"
#include "scheduler/store/state_store.h"

namespace holdfast::sched {

struct DaemonOptions {
  std::string state_dir;
  std::string store_dir;  // default checkpoint store; empty: <state>/store
  std::string listen;     // HOST:PORT besides the Unix socket; empty: none
  bool insecure = false;  // allows `listen` beyond loopback
  proto::Modes modes;     // of causes that a job says nothing about
  std::string key_file;   // holds the key that callers over TCP must have; empty: none
};

class Daemon {
 public:
  // ALREADY_EXISTS when another scheduler has the state; errors name file or port and remedy.
  // `clock` must outlive the daemon.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options,
                                                       const Clock* clock);
  ~Daemon();

  // Refuses new work, ends streams, joins threads; at most about 2 s.
  void Stop();
  // Grows while the main loop makes progress.
  uint64_t Progress() const { return ticker_->turns(); }
  const std::string& socket() const { return socket_; }
  int tcp_port() const { return tcp_port_; }

 private:
  Daemon() = default;
  absl::Status Prepare(const DaemonOptions& options);
  absl::Status OpenState(const DaemonOptions& options, const Clock* clock);
  absl::Status Serve(const DaemonOptions& options);

  std::string socket_;
  UniqueFd lock_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<CoreLock> core_;
  std::string run_key_;
  std::unique_ptr<AgentChannels> channels_;
  std::unique_ptr<SchedulerService> scheduler_service_;
  std::unique_ptr<AgentLinkService> agent_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Ticker> ticker_;
  std::unique_ptr<NodeProber> prober_;
  int tcp_port_ = 0;
};

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_DAEMON_H_
