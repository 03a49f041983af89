// SPDX-License-Identifier: Apache-2.0
#include "cli/look/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"
#include "proto/text.h"

namespace holdfast::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCommandCharsMax = 60;
constexpr size_t kFramesShown = 3;
constexpr int kDepthMax = 10;

std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string BytesRate(const std::optional<double>& rate) {
  if (!rate) return "-";
  return absl::StrCat(proto::FormatBytes(static_cast<uint64_t>(*rate)), "/s");
}

std::string CommandCell(const LookedProcess& process, int depth) {
  std::string text = Printable(process.command);
  if (text.size() > kCommandCharsMax) text = absl::StrCat(text.substr(0, kCommandCharsMax), "...");
  return std::string(static_cast<size_t>(2 * std::min(depth, kDepthMax)), ' ') + text;
}

std::string WaitCell(const inspect::Looked& looked) {
  if (!looked.wait) return "-";
  const std::string text = Printable(inspect::WaitText(*looked.wait));
  return text.empty() ? "-" : text;
}

std::string TableOf(const LookedRank& rank) {
  Table table({"PID", "STATE", "CPUS", "QUEUED", "READ", "WRITTEN", "COMMAND", "IN"});
  std::map<pid_t, int> depths;
  const auto add = [&](const std::string& pid, const std::string& state,
                       const std::optional<inspect::Rates>& rates, const std::string& command,
                       const std::string& wait) {
    table.Add({pid, state, rates ? absl::StrFormat("%.2f", rates->cpus) : "-",
               rates ? absl::StrFormat("%.2f", rates->queued) : "-",
               BytesRate(rates ? rates->read : std::nullopt),
               BytesRate(rates ? rates->written : std::nullopt), command, wait});
  };
  for (const LookedProcess& process : rank.processes) {
    const inspect::ProcessStat& stat = process.looked.stat;
    const auto parent = depths.find(stat.parent);
    // What has lost its parents belongs to the rank all the same.
    const int depth =
        parent != depths.end() ? parent->second + 1 : static_cast<int>(stat.pid != rank.pid);
    depths[stat.pid] = depth;
    add(absl::StrCat(stat.pid), std::string(1, stat.state), process.looked.rates,
        CommandCell(process, depth), WaitCell(process.looked));
  }
  if (rank.processes.size() > 1) add("all", "", rank.all, "", "");
  return table.Text();
}

std::string PythonOf(const LookedRank& rank) {
  std::string text;
  for (const LookedProcess& process : rank.processes) {
    const std::string said =
        process.python ? inspect::StackText(*process.python, kFramesShown) : process.python_error;
    if (!said.empty())
      absl::StrAppend(&text, "\npython ", process.looked.stat.pid, ": ", Printable(said));
  }
  return text;
}

std::string RankText(const LookedRank& rank) {
  std::string text = absl::StrCat("rank ", rank.place.rank, " on ", rank.place.node);
  if (rank.pid == 0) return absl::StrCat(text, " ", rank.note);
  const size_t below = rank.processes.size() - 1;
  absl::StrAppend(&text, ": pid ", rank.pid, ", ", below,
                  below == 1 ? " process below it\n" : " processes below it\n", TableOf(rank),
                  PythonOf(rank));
  if (!rank.note.empty()) absl::StrAppend(&text, "\nnote: ", rank.note);
  if (!rank.judgement.empty())
    absl::StrAppend(&text, "\nrank ", rank.place.rank, " ", Printable(rank.judgement));
  return text;
}

Json RatesJson(const std::optional<inspect::Rates>& rates) {
  if (!rates) return nullptr;
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  return {{"cpus", rates->cpus},
          {"queued_cpus", rates->queued},
          {"read_bytes_per_s", number(rates->read)},
          {"written_bytes_per_s", number(rates->written)},
          {"storage_read_bytes_per_s", number(rates->storage_read)},
          {"storage_written_bytes_per_s", number(rates->storage_written)}};
}

const char* KindName(inspect::WaitKind kind) {
  switch (kind) {
    case inspect::WaitKind::kNone:
      return "none";
    case inspect::WaitKind::kDescriptor:
      return "descriptor";
    case inspect::WaitKind::kPoll:
      return "poll";
    case inspect::WaitKind::kPath:
      return "path";
    case inspect::WaitKind::kFutex:
      return "futex";
    case inspect::WaitKind::kChild:
      return "child";
    case inspect::WaitKind::kTime:
      return "time";
    case inspect::WaitKind::kOutside:
      return "outside";
    case inspect::WaitKind::kOther:
      return "other";
  }
  return "other";
}

Json WaitJson(const inspect::Looked& looked) {
  if (!looked.wait) return nullptr;
  const inspect::Wait& wait = *looked.wait;
  Json descriptors = Json::array();
  for (size_t i = 0; i < wait.fds.size(); ++i)
    descriptors.push_back({{"descriptor", wait.fds[i]}, {"target", wait.targets[i]}});
  return {{"kind", KindName(wait.kind)},
          {"call", wait.call},
          {"descriptors", descriptors},
          {"path", wait.path},
          {"child", wait.child},
          {"kernel", wait.kernel},
          {"writers", looked.writers},
          {"whole_interval", looked.rates.has_value() && looked.rates->blocked},
          {"text", inspect::WaitText(wait)}};
}

Json PythonJson(const LookedProcess& process) {
  if (!process.python) return nullptr;
  Json frames = Json::array();
  for (const inspect::PythonFrame& frame : *process.python)
    frames.push_back({{"function", frame.function}, {"file", frame.file}, {"line", frame.line}});
  return frames;
}

Json ProcessJson(const LookedProcess& process) {
  const inspect::ProcessStat& stat = process.looked.stat;
  return {{"pid", stat.pid},
          {"parent", stat.parent},
          {"name", stat.name},
          {"command", process.command},
          {"state", std::string(1, stat.state)},
          {"threads", stat.threads},
          {"start_ticks", stat.start_ticks},
          {"rates", RatesJson(process.looked.rates)},
          {"wait", WaitJson(process.looked)},
          {"python", PythonJson(process)},
          {"python_error", process.python_error}};
}

Json RankJson(const LookedRank& rank) {
  Json processes = Json::array();
  for (const LookedProcess& process : rank.processes) processes.push_back(ProcessJson(process));
  return {{"rank", rank.place.rank},
          {"node", rank.place.node},
          {"here", rank.place.here},
          {"pid", rank.pid},
          {"judgement", rank.judgement},
          {"note", rank.note},
          {"rates", rank.pid == 0 ? Json(nullptr) : RatesJson(rank.all)},
          {"processes", processes}};
}

}  // namespace

std::string LookText(const LookedJob& job) {
  std::vector<std::string> parts = {
      absl::StrCat(job.id, " ", job.name, " ", job.state, ", attempt ", job.attempt,
                   ", looked at for ", ShortDuration(static_cast<double>(job.interval_ms)))};
  for (const LookedRank& rank : job.look.ranks) parts.push_back(RankText(rank));
  return absl::StrJoin(parts, "\n\n");
}

std::string LookJson(const LookedJob& job) {
  Json ranks = Json::array();
  for (const LookedRank& rank : job.look.ranks) ranks.push_back(RankJson(rank));
  const Json out = {{"job", job.id},
                    {"name", job.name},
                    {"state", job.state},
                    {"attempt", job.attempt},
                    {"interval_ms", job.interval_ms},
                    {"ranks", ranks},
                    {"python_hint", job.look.python_hint}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace holdfast::cli
