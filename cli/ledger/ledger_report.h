// SPDX-License-Identifier: Apache-2.0
// What `holdfast ledger` prints: predictions beside what happened, and what follows from them for
// each cause. Pure.
//
// A prediction that acting had become cheaper than waiting ("due") was right when the attempt ended
// before the ranks went on, and wrong when they went on by themselves. One that was never due would
// not have been acted on: it is neither.
#ifndef HOLDFAST_CLI_LEDGER_LEDGER_REPORT_H_
#define HOLDFAST_CLI_LEDGER_LEDGER_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

inline constexpr int kRightForPromotion = 3;  // and none wrong

struct CauseScore {
  std::string cause;
  int found = 0;
  int right = 0, wrong = 0;  // of those that were due
  int not_due = 0;           // it went on, or ended, before acting would have paid
  int acted = 0;
  int open = 0;
  int64_t saved_ms = 0;  // by acting where it was right: from then on the job only stood
  bool promote = false;
};
// In the order of causes first seen.
std::vector<CauseScore> ScoreLedger(const std::vector<v1::LedgerEntry>& entries);

std::string OutcomeText(const v1::LedgerEntry& entry);  // "right: the job was stopped: ..."
std::string LedgerTable(const std::vector<v1::LedgerEntry>& entries, int64_t now_wall_ns);
// A line a cause, with what to do next.
std::string LedgerSummary(const std::vector<CauseScore>& scores);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LEDGER_LEDGER_REPORT_H_
