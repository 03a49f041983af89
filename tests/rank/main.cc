// SPDX-License-Identifier: Apache-2.0
// holdfast-test-rank: a training job without training. Restore or start; each step: work, update,
// agree with all ranks, snapshot. It proves supervision and recovery without LibTorch. Exit status:
// 0 done or told to stop, 2 usage, 3 an error, 70 its attempt is over, 76 damaged state.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/rank/exit_code.h"
#include "client/session.h"
#include "tests/rank/agreement.h"
#include "tests/rank/misbehave.h"
#include "tests/rank/options.h"
#include "tests/rank/state.h"

namespace holdfast::test_rank {
namespace {

using client::Error;
using client::Session;

constexpr int kExitUsage = 2, kExitError = 3;
constexpr int64_t kConnectTimeoutMs = 60'000;
constexpr uint32_t kBuffers = 2;
constexpr int64_t kRetryMs = 10;  // a last snapshot waits for a free buffer

void SleepMs(uint64_t ms) {
  timespec left = {static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1'000'000)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

uint64_t MonoNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

class Trainer {
 public:
  Trainer(const Options& options, Session* session)
      : options_(options),
        session_(session),
        agreement_(session),
        state_(options.seed, session->rank(), session->world_size(), options.bytes),
        tensors_(state_.Tensors()) {}

  int Run() {
    session_->EnterPhase(rank::kPhaseInit, 0);
    if (Error error = session_->WantArena(ckpt::SnapshotBytes(tensors_), kBuffers,
                                          static_cast<uint32_t>(tensors_.size()))) {
      return Fail(error);
    }
    session_->EnterPhase(rank::kPhaseRestore, 0);
    if (Error error = Restore()) return Fail(error);
    saves_seen_ = session_->SaveRequests();
    bool stopped = false;
    if (state_.step() == options_.steps && session_->RestoreStep() != 0) {
      // Nothing left to do, but the last step must reach the store: an earlier attempt's save of it
      // failed.
      uint64_t stall_ns = 0;
      if (Error error = Snapshot(options_.steps, Wish{}, &stall_ns)) return Fail(error);
    }
    while (state_.step() < options_.steps && !stopped) {
      if (!session_->AttemptIsCurrent()) return Fail({ESTALE, "a newer attempt has begun"});
      if (Error error = Step(state_.step() + 1, &stopped)) return Fail(error);
    }
    session_->EnterPhase(rank::kPhaseDone, state_.step());
    printf("rank %u attempt %llu: done at step %llu\n", session_->rank(),
           static_cast<unsigned long long>(session_->attempt()),
           static_cast<unsigned long long>(state_.step()));
    return 0;
  }

 private:
  int Fail(const Error& error) {
    fprintf(stderr, "rank %u: %s (errno %d)\n", session_->rank(), error.message.c_str(),
            error.code);
    session_->SetLastWords(error.message);
    if (error.code == ESTALE) return rank::kExitStale;
    return error.code == EBADMSG ? rank::kExitCorrupt : kExitError;
  }

  Error Restore() {
    constexpr std::string_view kFromStore = "checkpoint:";
    uint64_t wanted = session_->RestoreStep(), samples = 0;
    if (wanted != 0) {
      if (Error error = session_->Restore(tensors_, &samples)) return error;
    } else if (options_.restore.rfind(kFromStore, 0) == 0) {
      std::string reason;
      if (!RestoreFromStore(options_.restore.substr(kFromStore.size()), tensors_, &wanted, &samples,
                            &reason))
        return {EBADMSG, reason};  // of a test's own store: what cannot be read is damaged
    }
    if (state_.step() != wanted || samples != wanted * session_->world_size()) {
      return {EBADMSG, "restored state is of step " + std::to_string(state_.step()) + " with " +
                           std::to_string(samples) + " samples, expected step " +
                           std::to_string(wanted)};
    }
    printf("rank %u attempt %llu: starts after step %llu from '%s'\n", session_->rank(),
           static_cast<unsigned long long>(session_->attempt()),
           static_cast<unsigned long long>(wanted), options_.restore.c_str());
    fflush(stdout);
    return {};
  }

  Error Step(uint64_t step, bool* stopped) {
    session_->EnterPhase(first_ ? rank::kPhaseFirstStep : rank::kPhaseForward, step);
    Misbehave(options_.faults, session_->rank(), session_->attempt(), step);
    const uint64_t begin_ns = MonoNs();
    if (options_.step_ms > 0) SleepMs(options_.step_ms);
    session_->EnterPhase(rank::kPhaseReduce, step);
    Wish all;
    if (Error error = Agree(&all)) return error;
    // The update comes after the last collective of its step.
    session_->EnterPhase(rank::kPhaseOptimizer, step);
    if (step == options_.skip_update_step) {
      state_.PassOver(step);
    } else {
      state_.Update(step);
    }
    *stopped = all.stop;
    uint64_t stall_ns = 0;
    if (Error error = Snapshot(step, all, &stall_ns)) return error;
    Finish(step, begin_ns, stall_ns);
    return {};
  }

  Error Agree(Wish* all) {
    const uint64_t saves = session_->SaveRequests();
    Wish mine;
    mine.snapshot_ready = session_->SnapshotReady();
    mine.stop = session_->ShouldStop() != rank::kStopNone;
    mine.save = session_->rank() == 0 && saves != saves_seen_;
    if (Error error = agreement_.Meet(mine, all)) return error;
    saves_seen_ = saves;
    return {};
  }

  Error Snapshot(uint64_t step, Wish all, uint64_t* stall_ns) {
    if (options_.snapshot_every == 0 || session_->Detached()) return {};
    const bool must = step == options_.steps || all.stop || all.save;
    const bool persist =
        must || (options_.persist_every != 0 && step % options_.persist_every == 0);
    if (!persist && step % options_.snapshot_every != 0) return {};
    session_->EnterPhase(rank::kPhaseSnapshot, step);
    while (must && !all.snapshot_ready) {
      SleepMs(kRetryMs);
      Wish mine;
      mine.snapshot_ready = session_->SnapshotReady();
      if (Error error = agreement_.Meet(mine, &all)) return error;
    }
    if (!all.snapshot_ready) {
      session_->CountSkippedSnapshot();
      return {};
    }
    return session_->TakeSnapshot(tensors_, step, step * session_->world_size(), persist, stall_ns);
  }

  void Finish(uint64_t step, uint64_t begin_ns, uint64_t stall_ns) {
    rank::StepRecord record;
    record.step = step;
    record.samples = step * session_->world_size();
    record.loss = state_.Loss(step);
    record.grad_norm = 1.0;
    record.lr = 1e-3;
    record.done_ns = MonoNs();
    record.tokens_per_s = 1e9 / static_cast<double>(record.done_ns - begin_ns + 1);
    record.snapshot_stall_ns = stall_ns;
    session_->FinishStep(record);
    first_ = false;
    if (options_.log_bytes == 0) return;
    const std::string line(79, static_cast<char>('a' + step % 26));
    for (uint64_t bytes = 0; bytes < options_.log_bytes; bytes += 80) puts(line.c_str());
  }

  const Options options_;
  Session* session_;
  Agreement agreement_;
  State state_;
  std::vector<ckpt::TensorView> tensors_;
  uint64_t saves_seen_ = 0;
  bool first_ = true;
};

// Before anything else is opened: the numbers of the descriptors that came with the process, one a
// line.
void ListDescriptors(const std::string& path) {
  std::string text;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && atoi(name.c_str()) != dirfd(dir)) text += name + "\n";
  }
  closedir(dir);
  if (FILE* file = fopen(path.c_str(), "we")) {
    fwrite(text.data(), 1, text.size(), file);
    fclose(file);
  }
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) return kExitUsage;
  if (!options.descriptors_file.empty()) ListDescriptors(options.descriptors_file);
  Error error;
  const std::unique_ptr<Session> session = Session::Connect(kConnectTimeoutMs, &error);
  if (error) {
    fprintf(stderr, "holdfast-test-rank: %s (errno %d)\n", error.message.c_str(), error.code);
    return kExitError;
  }
  return Trainer(options, session.get()).Run();
}

}  // namespace
}  // namespace holdfast::test_rank

int main(int argc, char** argv) { return holdfast::test_rank::Main(argc, argv); }
