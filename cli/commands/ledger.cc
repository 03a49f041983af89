// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/ledger/ledger_file.h"
#include "cli/ledger/ledger_report.h"
#include "cli/output.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kSinceMsMax = int64_t{100} * 365 * 24 * 3600 * 1000;

struct LedgerOptions {
  std::string job;
  std::string since;
  bool runs = false;
};

absl::StatusOr<int64_t> BeginOf(const std::string& since, int64_t now_wall_ns) {
  if (since.empty()) return 0;
  const auto ms = proto::ParseDurationMs(since, 1000);
  if (!ms.ok() || *ms <= 0 || *ms > kSinceMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--since: \"", since, "\" is not a duration such as 12h or 7d"));
  }
  return now_wall_ns - *ms * kNsPerMs;
}

absl::StatusOr<std::vector<v1::LedgerEntry>> OfRuns(const LedgerOptions& options,
                                                    int64_t begin_wall_ns) {
  if (ParseJobId(options.job).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--job: ", options.job, ": each run has a j-1 of its own; with --runs give a name"));
  }
  const std::string path = LedgerPath();
  if (path.empty()) {
    return absl::NotFoundError(
        absl::StrCat("runs keep no ledger here: ", kLedgerVariable, " is empty, or HOME not set"));
  }
  size_t skipped = 0;
  auto all = ReadLedger(path, &skipped);
  if (!all.ok()) return all.status();
  if (skipped > 0) Hint(absl::StrCat("holdfast: ", path, ": ", skipped, " line(s) are no entries"));
  std::vector<v1::LedgerEntry> chosen;
  for (v1::LedgerEntry& entry : *all) {
    const bool of_job = options.job.empty() || options.job == entry.name();
    if (of_job && entry.begin_wall_ns() >= begin_wall_ns) chosen.push_back(std::move(entry));
  }
  return chosen;
}

absl::StatusOr<std::vector<v1::LedgerEntry>> OfScheduler(const Invocation& invocation,
                                                         const LedgerOptions& options,
                                                         int64_t begin_wall_ns) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return client.status();
  v1::ListLedgerRequest request;
  request.set_job(options.job);
  request.set_since_wall_ns(begin_wall_ns);
  auto ledger = (*client)->Call("read the ledger", &v1::Scheduler::Stub::ListLedger, request);
  if (!ledger.ok()) return ledger.status();
  return std::vector<v1::LedgerEntry>(ledger->entries().begin(), ledger->entries().end());
}

int Ledger(const Invocation& invocation, const LedgerOptions& options) {
  const int64_t now_wall_ns = SystemClock().WallNs();
  const auto begin = BeginOf(options.since, now_wall_ns);
  if (!begin.ok()) return Fail(begin.status());
  const auto entries =
      options.runs ? OfRuns(options, *begin) : OfScheduler(invocation, options, *begin);
  if (!entries.ok()) return Fail(entries.status());
  if (invocation.json) {
    for (const v1::LedgerEntry& entry : *entries) {
      if (!PrintLine(ToJson(entry))) return kExitRefused;
    }
    return kExitDone;
  }
  if (entries->empty()) {
    Hint("nothing was found while ranks lived");
    return kExitDone;
  }
  return PrintLine(absl::StrCat(LedgerTable(*entries, now_wall_ns), "\n\n",
                                LedgerSummary(ScoreLedger(*entries))))
             ? kExitDone
             : kExitRefused;
}

}  // namespace

void AddLedger(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "ledger",
      "What was found wrong with ranks that lived, what was or would have been done, and whether "
      "that was right",
      "  holdfast ledger --since 7d\n"
      "  holdfast ledger --job llama --json | jq -r .what\n"
      "  holdfast ledger --runs --since 7d        of this user's `holdfast run`s\n");
  auto options = std::make_shared<LedgerOptions>();
  verb.Option("--job", &options->job, "only this one's: j-42 or a name; with --runs a name");
  verb.Option("--since", &options->since, "only what began in this time: 12h, 7d");
  verb.Flag("--runs", &options->runs,
            "of `holdfast run`, whose schedulers end with them (see HOLDFAST_LEDGER)");
  verb.Then([=] { invocation->run = [=] { return Ledger(*invocation, *options); }; });
}

}  // namespace holdfast::cli
