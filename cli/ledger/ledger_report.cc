// SPDX-License-Identifier: Apache-2.0
#include "cli/ledger/ledger_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/ids.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

void Count(const v1::LedgerEntry& entry, CauseScore* score) {
  ++score->found;
  const bool due = entry.due_ms() > 0;
  switch (entry.outcome()) {
    case v1::LedgerEntry::OUTCOME_ACTED:
      ++score->acted;
      return;
    case v1::LedgerEntry::OUTCOME_WENT_ON:
      ++(due ? score->wrong : score->not_due);
      return;
    case v1::LedgerEntry::OUTCOME_ENDED:
      ++(due ? score->right : score->not_due);
      if (due) score->saved_ms += std::max<int64_t>(0, entry.lasted_ms() - entry.due_ms());
      return;
    default:
      ++score->open;
  }
}

std::string Advice(const CauseScore& score) {
  if (score.promote)
    return absl::StrCat("act: `--modes ", score.cause, "=act`, or `holdfast modes JOB ",
                        score.cause, "=act` while it runs");
  if (score.wrong > 0) return "go on observing: acting would have cut down jobs that lived";
  if (score.acted > score.found / 2) return "it is acted on";
  return absl::StrCat("go on observing until ", kRightForPromotion, " were right and none wrong");
}

}  // namespace

std::vector<CauseScore> ScoreLedger(const std::vector<v1::LedgerEntry>& entries) {
  std::vector<CauseScore> scores;
  for (const v1::LedgerEntry& entry : entries) {
    auto score = std::find_if(scores.begin(), scores.end(), [&](const CauseScore& known) {
      return known.cause == entry.cause();
    });
    if (score == scores.end()) {
      scores.emplace_back().cause = entry.cause();
      score = std::prev(scores.end());
    }
    Count(entry, &*score);
  }
  for (CauseScore& score : scores)
    score.promote = score.right >= kRightForPromotion && score.wrong == 0;
  return scores;
}

std::string OutcomeText(const v1::LedgerEntry& entry) {
  const bool due = entry.due_ms() > 0;
  switch (entry.outcome()) {
    case v1::LedgerEntry::OUTCOME_ACTED:
      return "acted";
    case v1::LedgerEntry::OUTCOME_WENT_ON:
      return due ? "wrong: it went on by itself" : "not due: it went on by itself";
    case v1::LedgerEntry::OUTCOME_ENDED:
      return absl::StrCat(due ? "right: " : "not due: ", entry.outcome_text());
    default:
      return due ? "open, due" : "open";
  }
}

std::string LedgerTable(const std::vector<v1::LedgerEntry>& entries, int64_t now_wall_ns) {
  Table table({"WHEN", "JOB", "CAUSE", "CLASS", "RANKS", "NAMED", "LASTED", "COST", "SURE", "MODE",
               "OUTCOME", "WHAT"});
  for (const v1::LedgerEntry& entry : entries) {
    const bool open = entry.outcome() == v1::LedgerEntry::OUTCOME_OPEN;
    const int64_t lasted_ms =
        open ? (now_wall_ns - entry.begin_wall_ns()) / 1'000'000 : entry.lasted_ms();
    table.Add({Ago(entry.begin_wall_ns(), now_wall_ns),
               absl::StrCat(ToString(JobId{entry.job()}), " ", entry.name()), entry.cause(),
               Short(entry.fault_class()), absl::StrJoin(entry.ranks(), ","),
               ShortDuration(static_cast<double>(entry.named_ms())),
               ShortDuration(static_cast<double>(lasted_ms)),
               ShortDuration(static_cast<double>(entry.cost_ms())),
               absl::StrFormat("%.0f%%", 100 * entry.confidence()),
               entry.mode() == v1::CAUSE_MODE_ACT ? "act" : "observe", OutcomeText(entry),
               entry.what()});
  }
  return table.Text();
}

std::string LedgerSummary(const std::vector<CauseScore>& scores) {
  std::string text;
  for (const CauseScore& score : scores) {
    absl::StrAppend(&text, score.cause, ": ", score.found, " found; of those that were due ",
                    score.right, " right, ", score.wrong, " wrong; ", score.not_due, " not due, ",
                    score.acted, " acted on, ", score.open, " open");
    if (score.saved_ms > 0)
      absl::StrAppend(&text, "; acting would have saved ",
                      ShortDuration(static_cast<double>(score.saved_ms)));
    absl::StrAppend(&text, ". ", Advice(score), "\n");
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace holdfast::cli
