// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/wait.h"

namespace holdfast::cli {
namespace {

struct EventOptions {
  bool follow = false;
  uint64_t after = 0;
  std::string job;
};

std::string LineOf(const v1::Event& event) {
  std::string line =
      absl::StrCat(event.sequence(), "  ", Rfc3339(event.wall_ns()), "  ", event.kind());
  if (event.job() != 0) absl::StrAppend(&line, "  ", ToString(JobId{event.job()}));
  if (event.attempt() != 0) absl::StrAppend(&line, " attempt ", event.attempt());
  if (!event.node().empty()) absl::StrAppend(&line, "  ", event.node());
  if (!event.text().empty()) absl::StrAppend(&line, "  ", event.text());
  return line;
}

// One opening of the stream. *after moves with every event that was printed.
absl::Status ReadOnce(SchedulerClient* client, InterruptGuard* guard, const EventOptions& options,
                      bool json, uint64_t* after) {
  EventQuery query;
  query.job = options.job;
  query.after = *after;
  query.follow = options.follow;
  bool reader_gone = false;
  const absl::Status status = ReadEvents(client, guard, query, [&](const v1::Event& event) {
    if (event.sequence() <= *after) return true;  // seen before the stream broke
    reader_gone = !PrintLine(json ? ToJson(event) : LineOf(event));
    if (!reader_gone) *after = event.sequence();
    return !reader_gone;
  });
  return reader_gone ? absl::AbortedError("nobody reads the events any more") : status;
}

int Follow(SchedulerClient* client, InterruptGuard* guard, const EventOptions& options, bool json) {
  const SystemClock clock;
  uint64_t after = options.after;
  int64_t heard_ns = clock.MonoNs();
  while (true) {
    const uint64_t before = after;
    const absl::Status status = ReadOnce(client, guard, options, json, &after);
    if (guard->interrupted()) {
      Hint(absl::StrCat("go on with: holdfast events -f --after ", after));
      return kExitInterrupted;
    }
    if (status.ok() && !options.follow) return kExitDone;
    if (after != before) heard_ns = clock.MonoNs();
    const bool again =
        status.ok() || IsBroken(status) || status.code() == absl::StatusCode::kDeadlineExceeded;
    if (!again) return Fail(client->Worded("read the events", status));
    if (status.code() == absl::StatusCode::kDeadlineExceeded) heard_ns = clock.MonoNs();
    // A stream that ends or breaks is opened again where it was left; Connect says when the
    // scheduler is back.
    const absl::Status back = client->Connect(kRetryPauseMs);
    if (back.ok()) heard_ns = clock.MonoNs();
    if (clock.MonoNs() - heard_ns > kReconnectMsMax * kNsPerMs) return Fail(back);
    guard->Pause(kRetryPauseMs);
  }
}

int Events(const Invocation& invocation, const EventOptions& options) {
  InterruptGuard guard;
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  if (const absl::Status reached = (*client)->Connect(); !reached.ok()) return Fail(reached);
  return Follow(client->get(), &guard, options, invocation.json);
}

}  // namespace

void AddEvents(CLI::App* app, Invocation* invocation) {
  Verb verb =
      AddVerb(app, invocation, "events", "What happened: jobs, nodes, incidents, checkpoints",
              "  holdfast events --job j-42\n"
              "  holdfast events -f                    goes on across restarts of the scheduler\n"
              "  holdfast events -f --after 1234       resumes after event 1234\n");
  auto options = std::make_shared<EventOptions>();
  verb.Flag("-f,--follow", &options->follow, "wait for new ones");
  verb.Option("--after", &options->after, "only those after this sequence number");
  verb.Option("--job", &options->job, "only this job's");
  verb.Then([=] { invocation->run = [=] { return Events(*invocation, *options); }; });
}

}  // namespace holdfast::cli
