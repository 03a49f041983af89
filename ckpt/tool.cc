// SPDX-License-Identifier: Apache-2.0
#include "ckpt/tool.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ckpt/read_boxes.h"
#include "ckpt/store.h"
#include "ckpt/store_layout.h"

namespace holdfast::ckpt {
namespace {

using Json = nlohmann::ordered_json;

struct Request {
  std::string verb;
  std::string store;
  std::vector<std::string> words;  // [STORE] [ID]
  std::string id;
  bool json = false;
};

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int Fail(std::ostream& err, const absl::Status& status) {
  err << "holdfast-ckpt: " << std::string(status.message()) << "\n";
  if (absl::IsNotFound(status)) return kToolNotFound;
  return absl::IsInvalidArgument(status) ? kToolUsage : kToolProblem;
}

// What is wrong with stored bytes is a problem of the store (1), never of the command line (2).
absl::Status AsProblem(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::DataLossError(status.message()) : status;
}

Json IdJson(const CheckpointId& id) {
  return Json{{"job", ToString(id.job)}, {"attempt", id.attempt}, {"step", id.step}};
}

std::string Pad(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string StateText(const ListedCheckpoint& c) {
  if (c.committed) return "committed";
  return c.problem.empty() ? absl::StrCat("prepared ", c.prepared_ranks) : "damaged";
}

int Ls(Store& store, const Request& request, std::ostream& out, std::ostream& err) {
  absl::StatusOr<std::vector<ListedCheckpoint>> all = store.List();
  if (!all.ok()) return Fail(err, AsProblem(all.status()));
  if (!request.json)
    out << Pad("CHECKPOINT", 24) << Pad("STATE", 14) << Pad("RANKS", 8) << "BYTES\n";
  for (const ListedCheckpoint& c : *all) {
    if (request.json) {
      Json json = IdJson(c.id);
      json["committed"] = c.committed;
      json["prepared_ranks"] = c.prepared_ranks;
      json["bytes"] = c.bytes;
      json["problem"] = c.problem;
      out << Line(json);
      continue;
    }
    out << Pad(ToString(c.id), 23) << ' ' << Pad(StateText(c), 13) << ' '
        << Pad(absl::StrCat(c.prepared_ranks), 7) << ' ' << c.bytes
        << (c.problem.empty() ? "" : "  " + c.problem) << "\n";
  }
  return kToolDone;
}

// The committed checkpoint that `text` names; without an attempt the newest one of that step.
absl::StatusOr<CheckpointId> Resolve(Store& store, const std::string& text) {
  const std::optional<CheckpointRef> ref = ParseCheckpointRef(text);
  if (!ref)
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no checkpoint; write j-42@100 or j-42@100.3"));
  if (ref->has_attempt) return ref->id;
  HF_ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> all, store.List());
  for (auto c = all.rbegin(); c != all.rend(); ++c) {
    const bool same = c->id.job == ref->id.job && c->id.step == ref->id.step;
    if (same && c->committed) return c->id;
    if (same && !c->problem.empty()) return absl::DataLossError(c->problem);
  }
  return absl::NotFoundError(absl::StrCat("no committed checkpoint ", text, " in the store"));
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

std::map<std::string, const TensorRecord*> GlobalTensors(const CommitRecord& record) {
  std::map<std::string, const TensorRecord*> tensors;
  for (const RankManifest& m : record.ranks) {
    for (const TensorRecord& t : m.tensors) tensors.emplace(t.name, &t);
  }
  return tensors;
}

Json ShowJson(const CommitRecord& record) {
  Json json = IdJson(record.id);
  json["world_size"] = record.world_size;
  json["samples"] = record.samples;
  json["committed_wall_ns"] = record.committed_wall_ns;
  json["total_bytes"] = record.total_bytes;
  json["tensors"] = Json::array();
  for (const auto& [name, t] : GlobalTensors(record)) {
    json["tensors"].push_back(
        Json{{"name", name}, {"dtype", rank::DTypeName(t->dtype)}, {"shape", t->global_shape}});
  }
  json["ranks"] = Json::array();
  for (const RankManifest& m : record.ranks) {
    json["ranks"].push_back(Json{{"rank", m.rank},
                                 {"pack", m.pack},
                                 {"pack_bytes", m.pack_bytes},
                                 {"boxes", m.tensors.size()}});
  }
  return json;
}

int Show(Store& store, const Request& request, std::ostream& out, std::ostream& err) {
  absl::StatusOr<CheckpointId> id = Resolve(store, request.id);
  if (!id.ok()) return Fail(err, id.status());
  absl::StatusOr<CommitRecord> record = store.ReadCommit(*id);
  if (!record.ok()) return Fail(err, AsProblem(record.status()));
  if (request.json) {
    out << Line(ShowJson(*record));
    return kToolDone;
  }
  out << "checkpoint " << ToString(record->id) << "\nranks      " << record->world_size
      << "\nsamples    " << record->samples << "\nbytes      " << record->total_bytes
      << "\ntensors\n";
  for (const auto& [name, t] : GlobalTensors(*record)) {
    out << "  " << name << "  " << rank::DTypeName(t->dtype) << " " << ShapeText(t->global_shape)
        << "\n";
  }
  return kToolDone;
}

// Checkpoints to verify: the one asked for, or every one that has a commit record, valid or not.
absl::StatusOr<std::vector<CheckpointId>> ToVerify(Store& store, const std::string& id) {
  std::vector<CheckpointId> ids;
  if (!id.empty()) {
    HF_ASSIGN_OR_RETURN(const CheckpointId one, Resolve(store, id));
    ids.push_back(one);
    return ids;
  }
  HF_ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> all, store.List());
  for (const ListedCheckpoint& c : all) {
    if (c.committed || !c.problem.empty()) ids.push_back(c.id);
  }
  return ids;
}

int VerifyAll(Store& store, const Request& request, std::ostream& out, std::ostream& err) {
  absl::StatusOr<std::vector<CheckpointId>> ids = ToVerify(store, request.id);
  if (!ids.ok()) return Fail(err, ids.status());
  int exit = kToolDone;
  for (const CheckpointId& id : *ids) {
    const absl::Status status = AsProblem(store.Verify(id, nullptr));
    if (request.json) {
      Json json = IdJson(id);
      json["ok"] = status.ok();
      json["problem"] = std::string(status.message());
      out << Line(json);
    } else if (status.ok()) {
      out << ToString(id) << " ok\n";
    }
    if (status.ok()) continue;
    const int code = Fail(err, status);
    // A checkpoint that was asked for and is not there is "not found"; a file that is gone is
    // damage.
    exit = code == kToolNotFound && !store.ReadCommit(id).ok() ? kToolNotFound : kToolProblem;
  }
  return exit;
}

int Digest(Store& store, const Request& request, std::ostream& out, std::ostream& err) {
  absl::StatusOr<CheckpointId> id = Resolve(store, request.id);
  if (!id.ok()) return Fail(err, id.status());
  absl::StatusOr<rank::Digest128> digest = store.StateDigest(*id);
  if (!digest.ok()) return Fail(err, AsProblem(digest.status()));
  if (request.json) {
    Json json = IdJson(*id);
    json["digest"] = DigestHex(*digest);
    out << Line(json);
  } else {
    out << DigestHex(*digest) << "\n";
  }
  return kToolDone;
}

int Read(Store& store, const Request& request, std::istream& in, std::ostream& out,
         std::ostream& err) {
  absl::StatusOr<CheckpointId> id = Resolve(store, request.id);
  if (!id.ok()) return Fail(err, id.status());
  absl::StatusOr<CommitRecord> record = store.ReadCommit(*id);
  if (!record.ok()) return Fail(err, AsProblem(record.status()));
  absl::StatusOr<std::vector<BoxRequest>> boxes = ParseBoxRequests(*record, in);
  if (!boxes.ok()) return Fail(err, boxes.status());
  if (absl::Status status = WriteBoxes(&store, *record, *boxes, out); !status.ok())
    return Fail(err, AsProblem(status));
  return kToolDone;
}

// STORE may stand first or behind --store.
absl::Status SplitWords(Request* request) {
  std::vector<std::string> words = request->words;
  if (request->store.empty()) {
    if (words.empty())
      return absl::InvalidArgumentError("no store: give its directory, or --store DIR");
    request->store = words.front();
    words.erase(words.begin());
  }
  const bool takes_id = request->verb != "ls", needs_id = takes_id && request->verb != "verify";
  if (words.size() > (takes_id ? 1u : 0u))
    return absl::InvalidArgumentError(absl::StrCat("unexpected '", words.back(), "'"));
  if (needs_id && words.empty())
    return absl::InvalidArgumentError("no checkpoint: write j-42@100 or j-42@100.3");
  if (!words.empty()) request->id = words.front();
  return absl::OkStatus();
}

void AddVerb(CLI::App* app, Request* request, const char* verb, const char* help,
             const char* words) {
  CLI::App* command = app->add_subcommand(verb, help);
  command->add_option("--store", request->store,
                      "the store's directory (or as the first argument)");
  command->add_flag("--json", request->json, "one JSON object a line");
  command->add_option("arguments", request->words, words);
  command->callback([request, verb] { request->verb = verb; });
}

// Empty when the request is good; else the exit code.
std::optional<int> Parse(const std::vector<std::string>& arguments, Request* request,
                         std::ostream& out, std::ostream& err) {
  CLI::App app{
      "Looks into a store of checkpoints, with no daemon.\nExit codes: 0 done, 1 a problem was "
      "found, 2 usage, 3 not found.",
      "holdfast-ckpt"};
  app.require_subcommand(1);
  AddVerb(&app, request, "ls", "lists all checkpoints, committed or not", "[STORE]");
  AddVerb(&app, request, "show", "what a committed checkpoint holds", "[STORE] j-42@100[.3]");
  AddVerb(&app, request, "verify", "reads every byte of one checkpoint, or of all",
          "[STORE] [j-42@100[.3]]");
  AddVerb(&app, request, "read", "verified bytes of boxes: JSON lines in, bytes out (for programs)",
          "[STORE] j-42@100[.3]");
  AddVerb(&app, request, "digest", "the state's digest: equal for equal states in any layout",
          "[STORE] j-42@100[.3]");
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    out << app.help("", CLI::AppFormatMode::Normal);
    return kToolDone;
  } catch (const CLI::ParseError& error) {
    err << "holdfast-ckpt: " << error.what() << "; see holdfast-ckpt --help\n";
    return kToolUsage;
  }
  if (absl::Status status = SplitWords(request); !status.ok()) return Fail(err, status);
  return std::nullopt;
}

}  // namespace

int RunTool(FileSystem* fs, const std::vector<std::string>& arguments, std::istream& in,
            std::ostream& out, std::ostream& err) {
  Request request;
  if (const std::optional<int> exit = Parse(arguments, &request, out, err)) return *exit;
  StoreOptions options;
  options.create = false;
  options.use_uring = false;
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(fs, request.store, options);
  if (!store.ok()) return Fail(err, AsProblem(store.status()));
  if (request.verb == "ls") return Ls(**store, request, out, err);
  if (request.verb == "show") return Show(**store, request, out, err);
  if (request.verb == "verify") return VerifyAll(**store, request, out, err);
  if (request.verb == "read") return Read(**store, request, in, out, err);
  return Digest(**store, request, out, err);
}

}  // namespace holdfast::ckpt
