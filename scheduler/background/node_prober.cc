// SPDX-License-Identifier: Apache-2.0
#include "scheduler/background/node_prober.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

namespace holdfast::sched {

struct NodeProber::Call {
  ProbeTask task;
  std::shared_ptr<v1::Agent::Stub> stub;
  grpc::ClientContext context;
  v1::ProbePeerRequest request;
  v1::ProbePeerResponse response;
};

void NodeProber::Start() {
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "hf-prober");
    Main();
  });
}

void NodeProber::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
    for (Call* call : calls_) call->context.TryCancel();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  while (!calls_.empty()) changed_.Wait(mutex_);
}

void NodeProber::Main() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stop_) changed_.WaitForNs(mutex_, kProbeEveryMs * kNsPerMs);
      if (stop_) return;
    }
    const std::vector<ProbeTask> tasks =
        core_->With([](Engine& engine, Now now) { return engine.DueProbes(now); });
    for (const ProbeTask& task : tasks) Ask(task);
  }
}

void NodeProber::Ask(const ProbeTask& task) {
  auto* call = new Call;
  call->task = task;
  call->stub = channels_->Get(task.neighbour_address);
  call->request.set_node(task.target);
  call->request.set_address(task.target_address);
  proto::PrepareContext(&call->context, kProbeDeadlineMs, /*wait_for_ready=*/false);
  {
    MutexLock lock(mutex_);
    const bool wanted = !stop_ && calls_.size() < kProbesInFlightMax &&
                        in_flight_.insert({task.neighbour, task.target}).second;
    if (wanted) calls_.insert(call);
    if (!wanted) {
      delete call;
      return;
    }
  }
  call->stub->async()->ProbePeer(&call->context, &call->request, &call->response,
                                 [this, call](const grpc::Status& status) { Done(call, status); });
}

void NodeProber::Done(Call* call, const grpc::Status& status) {
  const absl::Status noted = core_->With([&](Engine& engine, Now now) {
    return engine.NoteProbe(call->task, status.ok(), call->response, now);
  });
  if (!noted.ok()) spdlog::error("after a probe of {}: {}", call->task.target, noted.ToString());
  MutexLock lock(mutex_);
  calls_.erase(call);
  in_flight_.erase({call->task.neighbour, call->task.target});
  changed_.NotifyAll();
  delete call;
}

}  // namespace holdfast::sched
