// SPDX-License-Identifier: Apache-2.0
// Writes sealed snapshots to their store directories and puts commit records there, on one thread
// of its own. Results come back on the loop's thread. A failed save never stops training: its
// buffer is given back and the failure is reported.
#ifndef HOLDFAST_AGENT_SAVER_H_
#define HOLDFAST_AGENT_SAVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/event_loop.h"
#include "agent/mapping.h"
#include "agent/work_queue.h"
#include "base/ids.h"
#include "ckpt/store.h"
#include "holdfast/v1/agent.pb.h"

namespace holdfast::agent {

inline constexpr size_t kSaverTasksMax = 4096;

class Saver {
 public:
  explicit Saver(EventLoop* loop) : loop_(loop), queue_("saver", kSaverTasksMax) {}

  struct Persist {
    CheckpointId id;
    uint32_t rank = 0;
    uint32_t buffer = 0;
    std::shared_ptr<Arena> arena;  // also the job's: it must stay mapped while it is written
    std::string store;
    std::shared_ptr<std::atomic<uint64_t>>
        fence;  // newest attempt; also the job's, which raises it while this waits
  };
  // `done` gets the save with its manifest, or with its error, or nothing when the snapshot was
  // superseded or its attempt is over. False: too much is waiting already.
  bool Save(Persist what, std::function<void(std::optional<v1::PreparedSave>)> done);

  // Puts the commit record into the store, or removes what was prepared.
  bool Commit(const CheckpointId& id, const std::string& store, const std::string& record,
              bool abort, std::function<void(absl::Status)> done);

  // What is prepared and not committed of a job, of any rank.
  bool ListPrepared(JobId job, const std::string& store,
                    std::function<void(absl::StatusOr<std::vector<ckpt::RankManifest>>)> done);

  bool Stop(int64_t wait_ns) { return queue_.Stop(wait_ns); }

 private:
  absl::StatusOr<ckpt::Store*> Open(const std::string& directory);
  void RunSave(const Persist& what,
               const std::function<void(std::optional<v1::PreparedSave>)>& done);

  EventLoop* const loop_;
  std::map<std::string, std::unique_ptr<ckpt::Store>> stores_;  // the queue's thread only
  WorkQueue queue_;                                             // last: its thread uses the rest
};

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_SAVER_H_
