// SPDX-License-Identifier: Apache-2.0
// A rank's connection to its keeper, in C++: hello, recorder, arena, restore, and the rendezvous
// store of the attempt. The C ABI (client/holdfast.h) and the native trainer are thin layers over
// it. Links nothing but libc and libstdc++.
//
// Without HOLDFAST_SOCKET in the environment Connect() gives a detached session on which everything
// is a harmless no-op (Detached() is true), so that a program runs the same without Holdfast.
// Threads: store calls may come from any thread (one request at a time on the wire), those about
// collectives too; everything else belongs to one thread.
#ifndef HOLDFAST_CLIENT_SESSION_H_
#define HOLDFAST_CLIENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank/collectives.h"
#include "base/rank/recorder.h"
#include "ckpt/client/snapshot.h"

namespace holdfast::client {

// Why a call failed; `message` is for people.
struct Error {
  int code = 0;  // errno-like; 0 = no error. ETIMEDOUT, ESTALE (an older attempt), ECONNRESET (the
                 // keeper is gone), EINVAL
  std::string message;
  explicit operator bool() const { return code != 0; }
};

class Session {
 public:
  // Connects to HOLDFAST_SOCKET and says hello within `timeout_ms`.
  static std::unique_ptr<Session> Connect(int64_t timeout_ms, Error* error);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool Detached() const;
  uint64_t job() const;
  uint64_t attempt() const;
  uint32_t rank() const;
  uint32_t world_size() const;

  // True while this process may apply another step: its attempt is the current one.
  bool AttemptIsCurrent() const;
  rank::StopReason ShouldStop() const;
  uint64_t SaveRequests() const;
  void EnterPhase(rank::Phase phase, uint64_t step, uint32_t micro_batch = 0);
  void FinishStep(const rank::StepRecord& record);
  void SetLastWords(std::string_view text);

  // Collective operations (base/rank/collectives.h), for those who look for the rank that holds up
  // the others. False, and every call does nothing: detached, or the keeper is older than they are.
  bool RecordsCollectives() const;
  // The number of a process group of `size` ranks; `ranks` may be null: not known. ENOSPC when
  // there are too many in this process.
  Error AddGroup(const char* name, const uint32_t* ranks, uint32_t size, uint32_t* group);
  uint64_t BeginCollective(const rank::CollectiveBegin& operation);
  void EndCollective(uint64_t handle, rank::CollectiveOutcome outcome);

  // The arena: asked for once, before the first step. The keeper has touched its pages.
  Error WantArena(uint64_t data_bytes, uint32_t buffers, uint32_t tensors);

  // The step of the memory snapshot this attempt starts from, 0 when it starts from a checkpoint or
  // from scratch (then HOLDFAST_RESTORE says which: "checkpoint:<store>:<job>@<step>.<attempt>" or
  // "scratch").
  uint64_t RestoreStep() const;
  Error Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples);
  // What that snapshot holds; `data` points into the arena, at bytes that only Restore verifies.
  // Valid until the arena is asked for again or its buffer is filled again.
  Error ListRestore(std::vector<ckpt::TensorView>* tensors);

  // Snapshot of the state after `step`. Call SnapshotReady on every rank, reduce, and take it on
  // all or on none.
  bool SnapshotReady() const;
  Error TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step, uint64_t samples,
                     bool persist, uint64_t* stall_ns);
  void CountSkippedSnapshot();

  // Rendezvous store. Values are at most 60 KiB, keys 1 KiB.
  Error StoreSet(std::string_view key, std::string_view value);
  Error StoreGet(std::string_view key, int64_t timeout_ms,
                 std::string* value);  // waits for the key
  // c10d's compareSet: stores `desired` when the key is absent and `expected` is empty, or when it
  // holds `expected`; `value` is what the key holds afterwards.
  Error StoreCompareSet(std::string_view key, std::string_view expected, std::string_view desired,
                        std::string* value);
  Error StoreAdd(std::string_view key, int64_t delta, int64_t* sum);
  Error StoreWait(const std::vector<std::string>& keys, int64_t timeout_ms);
  Error StoreCheck(const std::vector<std::string>& keys, bool* all_there);
  Error StoreDelete(std::string_view key, bool* existed);

 private:
  Session();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::client

#endif  // HOLDFAST_CLIENT_SESSION_H_
