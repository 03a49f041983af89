// SPDX-License-Identifier: Apache-2.0
#include "worker/launch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/session.h"
#include "parallel/session_store.h"
#include "worker/data/indexed_dataset.h"
#include "worker/exit_codes.h"

namespace holdfast::worker {
namespace {

constexpr int64_t kSessionTimeoutMs = 30'000;
constexpr int64_t kFaultFileBytesMax = 64 << 10;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<int64_t> NumberFromEnv(const char* name, int64_t fallback) {
  const std::string text = Env(name);
  int64_t value = fallback;
  if (!text.empty() && (!absl::SimpleAtoi(text, &value) || value < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", text, " is not a whole number from 0"));
  }
  return value;
}

// A Status and the exit code that says whose fault it is.
struct Failure {
  int code;
  absl::Status status;
};

int CodeOfRun(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return kExitPeerLost;
    case absl::StatusCode::kFailedPrecondition:
      return kExitStale;
    case absl::StatusCode::kOutOfRange:
      return kExitNumeric;
    case absl::StatusCode::kAborted:
      return kExitSnapshot;
    case absl::StatusCode::kInternal:
      return kExitInternal;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitData;
  }
}

void PrintStep(const rank::StepRecord& r) {
  std::printf(
      "{\"step\":%llu,\"samples\":%llu,\"loss\":%.9g,\"grad_norm\":%.9g,\"lr\":%.9g,\"tokens_per_"
      "s\":%.1f}\n",
      static_cast<unsigned long long>(r.step), static_cast<unsigned long long>(r.samples), r.loss,
      r.grad_norm, r.lr, r.tokens_per_s);
  std::fflush(stdout);
}

absl::StatusOr<TrainerOptions> ReadOptions(const std::string& config_path, int64_t ranks) {
  TrainerOptions options;
  HF_ASSIGN_OR_RETURN(options.config, LoadConfig(config_path));
  HF_RETURN_IF_ERROR(ResolveRanks(&options.config, ranks));
  HF_ASSIGN_OR_RETURN(options.snapshot_every, NumberFromEnv("HOLDFAST_SNAPSHOT_EVERY", 1));
  HF_ASSIGN_OR_RETURN(options.persist_every, NumberFromEnv("HOLDFAST_PERSIST_EVERY", 0));
  if (const std::string path = Env("HOLDFAST_FAULT_FILE"); !path.empty()) {
    HF_ASSIGN_OR_RETURN(auto file, PosixFileSystem()->OpenForRead(path));
    std::string text(kFaultFileBytesMax, '\0');
    HF_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, text.data(), text.size()));
    text.resize(got);
    HF_ASSIGN_OR_RETURN(options.drop, ParseFaultFile(text));
  }
  return options;
}

absl::StatusOr<std::unique_ptr<SampleSource>> OpenData(const Config& config) {
  const uint64_t seed = static_cast<uint64_t>(config.train.seed);
  if (config.data.kind == "synthetic")
    return SyntheticTokens(seed, config.model.seq_len, config.model.vocab);
  return OpenTokens(PosixFileSystem(), config.data.prefix, seed, config.model.seq_len,
                    config.model.vocab);
}

// What the bits depend on is fixed here, before the first tensor.
void PinLibTorch(int threads) {
  at::set_num_threads(threads);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // every tensor of ours is written before it is read
}

class Launch {
 public:
  explicit Launch(std::string config_path) : config_path_(std::move(config_path)) {}

  int Run() {
    Failure failure{kExitInternal, absl::OkStatus()};
    // What LibTorch throws outside a step: no memory for the parameters, most of all.
    const absl::Status thrown = parallel::Guard("start", [&] { failure = Train(); });
    if (!thrown.ok()) failure = {kExitInternal, thrown};
    const int code = failure.status.ok() ? failure.code : Report(failure);
    std::fflush(stdout);
    // Without destructors: those of a process group whose peer is gone may wait for it.
    std::_Exit(code);
  }

 private:
  Failure Train() {
    start_ns_ = clock_.MonoNs();
    client::Error error;
    session_ = client::Session::Connect(kSessionTimeoutMs, &error);
    if (error)
      return {kExitInternal,
              absl::UnavailableError(absl::StrCat("connect to HOLDFAST_SOCKET: ", error.message))};
    link_ = std::make_unique<SessionLink>(session_.get());
    link_->EnterPhase(rank::kPhaseInit, 0, 0);
    ranks_ = session_->Detached() ? 1 : session_->world_size();
    rank_ = session_->Detached() ? 0 : session_->rank();
    auto options = ReadOptions(config_path_, ranks_);
    if (!options.ok()) return {kExitUsage, options.status()};
    const Config config = options->config;
    auto data = OpenData(config);
    if (!data.ok()) return {kExitData, data.status()};
    PinLibTorch(static_cast<int>(config.train.threads));
    auto mesh = parallel::Mesh::Create(config.parallel.dp, config.parallel.tp, rank_, ranks_);
    if (!mesh.ok()) return {kExitUsage, mesh.status()};

    link_->EnterPhase(rank::kPhaseCommInit, 0, 0);
    auto groups = Connect(*mesh, config.parallel.timeout_s * 1000);
    if (!groups.ok()) return {CodeOfRun(groups.status()), groups.status()};
    if (rank_ == 0) options->on_step = PrintStep;
    Trainer trainer(*std::move(options), *mesh, *groups, link_.get(), data->get(), &clock_);
    return RunTrainer(&trainer);
  }

  int CodeOfRestore(const absl::Status& status) const {
    if (!session_->AttemptIsCurrent()) return kExitStale;
    return absl::IsDataLoss(status) ? kExitCorrupt : kExitRestore;
  }

  absl::StatusOr<parallel::Groups> Connect(const parallel::Mesh& mesh, int64_t timeout_ms) {
    const int64_t begin_ns = clock_.MonoNs();
    parallel::GroupOptions options;
    options.timeout_ms = timeout_ms;
    options.prefix = absl::StrCat("worker/", session_->attempt());
    options.host = parallel::LocalAddressTowards(Env("MASTER_ADDR"));
    auto groups = parallel::ConnectGroups(
        mesh,
        session_->Detached() ? nullptr : parallel::MakeSessionStore(session_.get(), timeout_ms),
        options);
    connect_ms_ = (clock_.MonoNs() - begin_ns) / kNsPerMs;
    return groups;
  }

  Failure RunTrainer(Trainer* trainer) {
    link_->EnterPhase(rank::kPhaseRestore, 0, 0);
    const int64_t begin_ns = clock_.MonoNs();
    const auto start = trainer->Prepare(Env("HOLDFAST_RESTORE"));
    if (!start.ok()) return {CodeOfRestore(start.status()), start.status()};
    const int64_t now_ns = clock_.MonoNs();
    std::fprintf(stderr,
                 "holdfast-worker: rank %lld of %lld, attempt %llu: starts from %s; ready after "
                 "%lld ms (peers %lld, state %lld)\n",
                 static_cast<long long>(rank_), static_cast<long long>(ranks_),
                 static_cast<unsigned long long>(session_->attempt()), start->source.c_str(),
                 static_cast<long long>((now_ns - start_ns_) / kNsPerMs),
                 static_cast<long long>(connect_ms_),
                 static_cast<long long>((now_ns - begin_ns) / kNsPerMs));
    link_->EnterPhase(rank::kPhaseFirstStep, start->step + 1, 0);
    const auto end = trainer->Run();
    if (!end.ok()) return {CodeOfRun(end.status()), end.status()};
    if (*end == RunEnd::kStale) {
      return {kExitStale, absl::FailedPreconditionError(
                              "a newer attempt of this job exists; this process stops")};
    }
    link_->EnterPhase(*end == RunEnd::kDone ? rank::kPhaseDone : rank::kPhaseTeardown,
                      trainer->step(), 0);
    return {kExitDone, absl::OkStatus()};
  }

  int Report(const Failure& failure) {
    const std::string text =
        absl::StrCat("holdfast-worker: rank ", rank_, ": ", failure.status.message());
    std::fprintf(stderr, "%s\n", text.c_str());
    if (link_) link_->SetLastWords(text);
    return failure.code;
  }

  std::string config_path_;
  SystemClock clock_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<SessionLink> link_;
  int64_t rank_ = 0, ranks_ = 1, start_ns_ = 0, connect_ms_ = 0;
};

}  // namespace

absl::StatusOr<DropMicroBatch> ParseFaultFile(std::string_view text) {
  const auto fail = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("HOLDFAST_FAULT_FILE: ", what));
  };
  const nlohmann::json root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return fail("is not a JSON object");
  DropMicroBatch drop;
  for (const auto& [key, value] : root.items()) {
    if (key != "drop_micro_batch")
      return fail(absl::StrCat(key, ": unknown fault; known: drop_micro_batch"));
    if (!value.is_object() || !value.contains("step") || !value.contains("rank") ||
        value.size() != 2 || !value["step"].is_number_unsigned() ||
        !value["rank"].is_number_unsigned()) {
      return fail("drop_micro_batch: must hold the whole numbers step and rank");
    }
    drop = {value["step"].get<int64_t>(), value["rank"].get<int64_t>()};
  }
  return drop;
}

absl::Status CheckConfiguration(const std::string& path, int64_t ranks) {
  HF_ASSIGN_OR_RETURN(Config config, LoadConfig(path));
  HF_RETURN_IF_ERROR(ResolveRanks(&config, ranks));
  HF_RETURN_IF_ERROR(OpenData(config).status());
  if (config.data.kind == "synthetic") return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const auto data, IndexedDataset::Open(PosixFileSystem(), config.data.prefix));
  std::vector<uint64_t> counts;
  HF_RETURN_IF_ERROR(CountTokens(*data, &counts));
  if (static_cast<int64_t>(counts.size()) > config.model.vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat(data->bin_path(), ": holds token ", counts.size() - 1, ", but model.vocab is ",
                     config.model.vocab, "; set model.vocab to the tokenizer's"));
  }
  return absl::OkStatus();
}

int RunWorker(const std::string& config_path) { return Launch(config_path).Run(); }

}  // namespace holdfast::worker
