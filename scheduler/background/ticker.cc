// SPDX-License-Identifier: Apache-2.0
#include "scheduler/background/ticker.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

namespace holdfast::sched {

void Ticker::Start() {
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "hf-ticker");
    Main();
  });
}

void Ticker::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Ticker::Main() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stop_) wake_.WaitForNs(mutex_, kTickMs * kNsPerMs);
      if (stop_) return;
    }
    const absl::Status status =
        core_->With([](Engine& engine, Now now) { return engine.Tick(now); });
    // On change only: a full disk would fill the log as well.
    const std::string error = status.ok() ? "" : status.ToString();
    if (error != last_error_ && !error.empty())
      spdlog::error("the state cannot be written: {}", error);
    if (error != last_error_ && error.empty()) spdlog::info("the state can be written again");
    last_error_ = error;
    turns_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace holdfast::sched
