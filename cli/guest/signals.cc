// SPDX-License-Identifier: Apache-2.0
#include "cli/guest/signals.h"

namespace holdfast::cli {

void SurviveUserSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    ::signal(signal, SIG_IGN);
    ::sigaddset(&set, signal);
  }
  // In every thread to come: one that did not block them would take and drop what RankSignals waits
  // for.
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

RankSignals::RankSignals(const GuestDaemons& daemons, bool pass_on)
    : daemons_(daemons), pass_on_(pass_on) {
  ::sigemptyset(&signals_);
  ::sigaddset(&signals_, SIGUSR1);
  ::sigaddset(&signals_, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  thread_ = std::thread([this] {
    int signal = 0;
    while (::sigwait(&signals_, &signal) == 0 && !ending_.load()) {
      if (pass_on_) daemons_.SignalRanks(signal);
    }
  });
}

RankSignals::~RankSignals() {
  ending_.store(true);
  ::pthread_kill(thread_.native_handle(), SIGUSR1);  // blocked everywhere: it only wakes sigwait
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace holdfast::cli
