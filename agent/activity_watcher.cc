// SPDX-License-Identifier: Apache-2.0
#include "agent/activity_watcher.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/activity_model.h"
#include "agent/kept_logs.h"
#include "base/clock.h"
#include "base/inspect/judge.h"
#include "base/inspect/look_once.h"
#include "base/inspect/py_spy.h"
#include "base/inspect/sample.h"
#include "base/mutex.h"

namespace holdfast::agent {
namespace {

using inspect::ProcessStat;
using inspect::ProcFs;

constexpr int64_t kEndMsMax = 2'000;
constexpr int64_t kForgetNs = 600 * kNsPerSec;  // between two attempts of a job
constexpr size_t kPythonLines = 3;
constexpr size_t kTextBytesMax = 1024;
constexpr int64_t kExplainShare = 20;  // of the time, one part at most goes into explaining waits

using Who = std::pair<uint64_t, uint32_t>;  // job, rank

constexpr char kMoves[] = "moves";  // within this file: a past is known, and nothing differs

// What was last said of a rank.
struct Word {
  uint64_t attempt = 0;
  int64_t at_ns = 0;
  v1::Quiet quiet;
};
using Words = std::map<Who, Word>;

// What is known of one rank.
struct Watched {
  WatchedRank rank;
  uint64_t start_ticks = 0;
  ActivityModel model;
  int64_t seen_ns = 0;
  // While it differs: the look before, and what is certain by now.
  inspect::Sample sample;
  int64_t sample_ns = 0;
  int64_t next_sample_ns = 0;
  inspect::Judgement judgement;
  std::string python;
  pid_t python_pid = 0;
  bool python_asked = false;
};

v1::Quiet::WaitsFor ToProto(inspect::WaitsFor end) {
  switch (end) {
    case inspect::WaitsFor::kPeer:
      return v1::Quiet::WAITS_FOR_PEER;
    case inspect::WaitsFor::kTime:
      return v1::Quiet::WAITS_FOR_TIME;
    case inspect::WaitsFor::kData:
    case inspect::WaitsFor::kEnded:  // a child whose end nobody has taken
      return v1::Quiet::WAITS_FOR_DATA;
    case inspect::WaitsFor::kStorage:
      return v1::Quiet::WAITS_FOR_STORAGE;
    case inspect::WaitsFor::kStopped:
      return v1::Quiet::WAITS_FOR_STOPPED;
    case inspect::WaitsFor::kUnknown:
      break;
  }
  return v1::Quiet::WAITS_FOR_UNSPECIFIED;
}

// For a message and a terminal: paths, process names and Python's lines are the job's to choose.
std::string Plain(std::string text) {
  text.resize(std::min(text.size(), kTextBytesMax));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return ToUtf8(text);
}

// Changes with every write to the log, whose files move when they are full.
uint64_t OutputMark(const std::string& base) {
  uint64_t mark = 0;
  for (const char* suffix : {"", ".tail"}) {
    struct stat info {};
    if (::stat(absl::StrCat(base, suffix).c_str(), &info) != 0) continue;
    mark = mark * 1'000'003 + static_cast<uint64_t>(info.st_mtim.tv_sec) * kNsPerSec +
           static_cast<uint64_t>(info.st_mtim.tv_nsec) + static_cast<uint64_t>(info.st_size);
  }
  return mark;
}

// The thread's own.
class Looker {
 public:
  explicit Looker(std::string root) : proc_(std::move(root)) {
    const char* path = std::getenv("PATH");
    path_ = path == nullptr ? "" : path;
  }

  Words Look(const std::vector<WatchedRank>& ranks) {
    Words words;
    const std::vector<ProcessStat> all =
        ranks.empty() ? std::vector<ProcessStat>() : proc_.AllStats();
    for (const WatchedRank& rank : ranks) {
      Watched& watched = watched_[{rank.job, rank.rank}];
      if (auto word = LookAt(rank, all, &watched))
        words[{rank.job, rank.rank}] = {rank.attempt, clock_.MonoNs(), *std::move(word)};
    }
    const int64_t now_ns = clock_.MonoNs();
    for (auto it = watched_.begin(); it != watched_.end();)
      it = now_ns - it->second.seen_ns > kForgetNs ? watched_.erase(it) : std::next(it);
    return words;
  }

 private:
  // nullopt: it could not be looked at.
  std::optional<v1::Quiet> LookAt(const WatchedRank& rank, const std::vector<ProcessStat>& all,
                                  Watched* watched) {
    watched->seen_ns = clock_.MonoNs();
    const auto own = std::find_if(all.begin(), all.end(),
                                  [&](const ProcessStat& stat) { return stat.pid == rank.pid; });
    if (own == all.end()) return std::nullopt;
    if (watched->rank.pid != rank.pid || watched->start_ticks != own->start_ticks) {
      watched->model.NewProcess();
      watched->start_ticks = own->start_ticks;
      EndPause(watched);
    }
    watched->rank = rank;
    std::vector<ProcessStat> processes = {*own};
    for (ProcessStat& stat : inspect::Below(all, rank.pid)) processes.push_back(std::move(stat));
    watched->model.Look(Sum(rank, processes), watched->seen_ns);
    const auto difference = watched->model.Differs(watched->seen_ns);
    if (!difference.has_value()) {
      EndPause(watched);
      v1::Quiet none;
      if (watched->model.Knows()) none.set_signal(kMoves);
      return none;
    }
    Explain(processes, *difference, watched);
    return Told(*difference, *watched);
  }

  ActivityLook Sum(const WatchedRank& rank, const std::vector<ProcessStat>& processes) const {
    ActivityLook look;
    look.step = rank.step;
    look.output = OutputMark(rank.log_base);
    for (const ProcessStat& stat : processes) {
      look.cpu_ms += stat.cpu_ticks * 1000 / ticks_per_s_;
      look.processes = look.processes * 1'000'003 + static_cast<uint64_t>(stat.pid);
      const auto text = proc_.Read(stat.pid, "io");
      const auto io = text.ok() ? inspect::ParseIo(*text) : std::nullopt;
      if (io.has_value()) look.io_bytes += io->read + io->written;
    }
    return look;
  }

  static void EndPause(Watched* watched) {
    watched->sample.clear();
    watched->next_sample_ns = 0;
    watched->judgement = {};
    watched->python.clear();
    watched->python_pid = 0;
    watched->python_asked = false;
  }

  // What it waits for takes two looks. A wait that wakes up now and then to wait again is not
  // certain in each of them: what was stays, as long as no work is seen.
  void Explain(const std::vector<ProcessStat>& processes, const Difference& difference,
               Watched* watched) {
    if (difference.signal != "work") watched->judgement = {};
    const int64_t begin_ns = clock_.MonoNs();
    if (begin_ns < watched->next_sample_ns) return;
    std::vector<pid_t> pids;
    for (const ProcessStat& stat : processes) pids.push_back(stat.pid);
    inspect::Sample now = inspect::TakeSample(proc_, pids);
    const int64_t now_ns = clock_.MonoNs();
    if (!watched->sample.empty()) {
      inspect::LookedAt looked;
      inspect::PipeWriters writers(proc_, pids);
      for (const auto& [pid, sample] : now) {
        looked[pid] = inspect::LookOnce(proc_, sample, watched->sample, now_ns - watched->sample_ns,
                                        &writers);
      }
      inspect::Judgement judgement = inspect::JudgeChain(watched->rank.pid, looked);
      if (!judgement.text.empty()) watched->judgement = std::move(judgement);
    }
    watched->sample = std::move(now);
    watched->sample_ns = now_ns;
    watched->next_sample_ns = now_ns + kExplainShare * (clock_.MonoNs() - begin_ns);
    if (!watched->judgement.text.empty() && !watched->python_asked) AskPython(watched);
  }

  void AskPython(Watched* watched) {
    watched->python_asked = true;
    const pid_t end = watched->judgement.pid;
    const pid_t pid = inspect::IsPython(proc_, end) ? end : watched->rank.pid;
    if (!inspect::IsPython(proc_, pid)) return;
    const auto py_spy = inspect::FindPySpy(proc_, pid, path_);
    if (!py_spy.ok()) return;
    const auto stack = inspect::PythonStack(*py_spy, pid);
    if (!stack.ok()) return;
    watched->python = inspect::StackText(*stack, kPythonLines);
    watched->python_pid = pid;
  }

  static v1::Quiet Told(const Difference& difference, const Watched& watched) {
    v1::Quiet quiet;
    quiet.set_signal(difference.signal);
    quiet.set_lasted_ms(difference.lasted_ms);
    quiet.set_limit_ms(difference.limit_ms);
    quiet.set_pauses_seen(difference.pauses);
    quiet.set_confidence(difference.confidence);
    quiet.set_waits_for(ToProto(watched.judgement.end));
    quiet.set_what(Plain(watched.judgement.text));
    quiet.set_python(Plain(watched.python));
    quiet.set_pid(static_cast<uint64_t>(watched.python_pid != 0 ? watched.python_pid
                                                                : watched.judgement.pid));
    return quiet;
  }

  const ProcFs proc_;
  const SystemClock clock_;
  const uint64_t ticks_per_s_ = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  std::string path_;
  std::map<Who, Watched> watched_;
};

}  // namespace

struct ActivityWatcher::Shared {
  Mutex mutex;
  CondVar changed;
  std::vector<WatchedRank> ranks ABSL_GUARDED_BY(mutex);
  Words words ABSL_GUARDED_BY(mutex);
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;

  void Run(const std::string& root) {
    Looker looker(root);
    while (true) {
      std::vector<WatchedRank> now;
      {
        MutexLock lock(mutex);
        if (!stop) changed.WaitForNs(mutex, kActivityLookMs * kNsPerMs);
        if (stop) break;
        now = ranks;
      }
      Words found = looker.Look(now);
      MutexLock lock(mutex);
      words = std::move(found);
    }
    MutexLock lock(mutex);
    ended = true;
    changed.NotifyAll();
  }
};

ActivityWatcher::ActivityWatcher(std::string proc_root) : shared_(std::make_shared<Shared>()) {
  std::thread thread([shared = shared_, root = std::move(proc_root)] { shared->Run(root); });
  ::pthread_setname_np(thread.native_handle(), "activity");
  thread.detach();  // its end is awaited by `ended`, as long as that makes sense
}

ActivityWatcher::~ActivityWatcher() {
  const SystemClock clock;
  const int64_t end_ns = clock.MonoNs() + kEndMsMax * kNsPerMs;
  MutexLock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.NotifyAll();
  while (!shared_->ended && clock.MonoNs() < end_ns)
    shared_->changed.WaitForNs(shared_->mutex, end_ns - clock.MonoNs());
}

void ActivityWatcher::SetRanks(std::vector<WatchedRank> ranks) {
  MutexLock lock(shared_->mutex);
  shared_->ranks = std::move(ranks);
}

std::optional<v1::Quiet> ActivityWatcher::QuietOf(uint64_t job, uint64_t attempt,
                                                  uint32_t rank) const {
  MutexLock lock(shared_->mutex);
  const auto found = shared_->words.find({job, rank});
  if (found == shared_->words.end() || found->second.attempt != attempt) return v1::Quiet();
  if (SystemClock().MonoNs() - found->second.at_ns > kStaleMs * kNsPerMs) return v1::Quiet();
  if (found->second.quiet.signal() == kMoves) return std::nullopt;
  return found->second.quiet;
}

}  // namespace holdfast::agent
