// SPDX-License-Identifier: Apache-2.0
// The one collective of holdfast-test-rank: at the end of each step all ranks meet in the
// rendezvous store and learn the same answer.
#ifndef HOLDFAST_TESTS_RANK_AGREEMENT_H_
#define HOLDFAST_TESTS_RANK_AGREEMENT_H_

#include <cstdint>
#include <string>

#include "client/session.h"

namespace holdfast::test_rank {

struct Wish {
  bool snapshot_ready = false;  // all must be
  bool stop = false;            // one is enough
  bool save = false;            // one is enough
};

class Agreement {
 public:
  explicit Agreement(client::Session* session) : session_(session) {}
  // Waits for every rank of the attempt.
  client::Error Meet(const Wish& mine, Wish* all);

 private:
  client::Error Decide(uint64_t sum);

  client::Session* session_;
  uint64_t meeting_ = 0;
};

}  // namespace holdfast::test_rank

#endif  // HOLDFAST_TESTS_RANK_AGREEMENT_H_
