// SPDX-License-Identifier: Apache-2.0
// `holdfast notify`: a command for each incident of the cluster, for as long as it runs. What was
// told is remembered in a file, so that a restart neither repeats nor forgets.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/notify/incident_command.h"
#include "cli/output.h"
#include "cli/state_dir.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kTryAgainMs = 5'000;
constexpr int kTriesMax = 3;

struct NotifyOptions {
  std::string command, cursor, when = "opened", job;
};

absl::Status Check(const NotifyOptions& options) {
  if (options.command.empty())
    return absl::InvalidArgumentError(
        "--command: missing; as in: holdfast notify --command 'curl -sf -d @- https://...'");
  if (options.when != "opened" && options.when != "closed")
    return absl::InvalidArgumentError(
        absl::StrCat("--when: \"", options.when, "\" is not opened or closed"));
  return absl::OkStatus();
}

// The sequence number after which nothing is told yet.
class Cursor {
 public:
  static absl::StatusOr<Cursor> Open(const std::string& path) {
    Cursor out;
    if (path.empty()) return out;
    out.path_ = AbsolutePath(path, WorkingDirectory());
    HF_ASSIGN_OR_RETURN(const bool exists, PosixFileSystem()->Exists(out.path_));
    if (!exists) return out;
    HF_ASSIGN_OR_RETURN(const std::string text, PosixFileSystem()->ReadFile(out.path_));
    if (!absl::SimpleAtoi(absl::StripSuffix(text, "\n"), &out.value_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--cursor: ", out.path_, " does not hold a number; remove it to begin anew"));
    }
    return out;
  }
  uint64_t value() const { return value_; }
  absl::Status Move(uint64_t value) {
    value_ = value;
    if (path_.empty()) return absl::OkStatus();
    return PosixFileSystem()->WriteFileDurably(path_, absl::StrCat(value, "\n"));
  }

 private:
  std::string path_;
  uint64_t value_ = 0;
};

class NotifyLoop {
 public:
  NotifyLoop(SchedulerClient* client, InterruptGuard* guard, NotifyOptions options, Cursor cursor)
      : client_(client), guard_(guard), options_(std::move(options)), cursor_(std::move(cursor)) {}

  // Until it is interrupted, or the cursor cannot be written.
  int Run() {
    bool told = false;
    while (!guard_->interrupted()) {
      const absl::Status status = ReadOnce();
      if (!failed_.ok()) return Fail(failed_);
      if (guard_->interrupted()) break;
      const bool again =
          status.ok() || IsBroken(status) || status.code() == absl::StatusCode::kDeadlineExceeded;
      if (!again) return Fail(client_->Worded("read the events", status));
      const absl::Status back = client_->Connect(kRetryPauseMs);
      if (!back.ok() && !std::exchange(told, true))
        Hint(absl::StrCat("holdfast: ", back.message()));
      if (back.ok()) told = false;
      guard_->Pause(kRetryPauseMs);
    }
    return kExitInterrupted;
  }

 private:
  absl::Status ReadOnce() {
    EventQuery query;
    query.job = options_.job;
    query.after = cursor_.value();
    return ReadEvents(client_, guard_, query,
                      [this](const v1::Event& event) { return Take(event); });
  }

  bool Take(const v1::Event& event) {
    if (event.sequence() <= cursor_.value()) return true;
    if (event.kind() == absl::StrCat("incident.", options_.when) && !Tell(event)) return false;
    failed_ = cursor_.Move(event.sequence());
    return failed_.ok();
  }

  // False after an interrupt: the next run tells it.
  bool Tell(const v1::Event& event) {
    for (int i = 1; !guard_->interrupted(); ++i) {
      const absl::Status done = RunIncidentCommand(options_.command, event);
      if (done.ok()) return true;
      Hint(absl::StrCat("holdfast: incident ", event.incident().id(), ", try ", i, " of ",
                        kTriesMax, ": ", done.message()));
      if (i >= kTriesMax) return true;
      guard_->Pause(kTryAgainMs);
    }
    return false;
  }

  SchedulerClient* const client_;
  InterruptGuard* const guard_;
  const NotifyOptions options_;
  Cursor cursor_;
  absl::Status failed_;
};

int Notify(const Invocation& invocation, const NotifyOptions& options) {
  if (const absl::Status bad = Check(options); !bad.ok()) return Fail(bad);
  auto cursor = Cursor::Open(options.cursor);
  if (!cursor.ok()) return Fail(cursor.status());
  InterruptGuard guard;
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  if (const absl::Status reached = (*client)->Connect(); !reached.ok()) return Fail(reached);
  return NotifyLoop(client->get(), &guard, options, *std::move(cursor)).Run();
}

}  // namespace

void AddNotify(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "notify", "Runs a command for each incident, while it runs itself",
      "  holdfast notify --command 'curl -sf -d @- https://hooks.example.org/x' --cursor "
      "/var/lib/holdfast/notify.cursor\n"
      "  holdfast notify --job j-42 --when closed --command 'jq .incident >> incidents.jsonl'\n"
      "The command gets the event with its incident as JSON on its standard input, and "
      "HOLDFAST_JOB, HOLDFAST_INCIDENT and\n"
      "HOLDFAST_EVENT in its environment. It has 30 s, and three tries.\n");
  auto options = std::make_shared<NotifyOptions>();
  verb.Option("--command", &options->command, "what sh -c runs");
  verb.Option("--cursor", &options->cursor,
              "file that remembers what was told (default: all that happened is told again)");
  verb.Option("--when", &options->when,
              "opened (default): as soon as it is named; closed: with all its times");
  verb.Option("--job", &options->job, "only this job's");
  verb.Then([=] { invocation->run = [=] { return Notify(*invocation, *options); }; });
}

}  // namespace holdfast::cli
