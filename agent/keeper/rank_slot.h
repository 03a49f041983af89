// SPDX-License-Identifier: Apache-2.0
// What the keeper knows of one rank. It outlives the rank's processes: the arena stays from attempt
// to attempt.
#ifndef HOLDFAST_AGENT_KEEPER_RANK_SLOT_H_
#define HOLDFAST_AGENT_KEEPER_RANK_SLOT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "agent/keeper/arena_memory.h"
#include "agent/keeper/log_file.h"
#include "base/rank/message.h"
#include "base/rank/recorder.h"
#include "base/unique_fd.h"

namespace holdfast::keeper {

// A recorder memfd and its mapping.
class RecorderMemory {
 public:
  ~RecorderMemory() { Drop(); }
  // Returns 0 or an errno.
  int Make(uint64_t job, uint64_t attempt, uint32_t rank, uint32_t world_size);
  void Drop();
  int fd() const { return fd_.get(); }
  // The line that keeper and agent write; null without a recorder.
  rank::ControlLine* control() const { return header_ == nullptr ? nullptr : &header_->control; }

 private:
  UniqueFd fd_;
  rank::RecorderHeader* header_ = nullptr;
};

struct RankSlot {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t attempt = 0;
  pid_t pid = 0;  // 0 when no process of the rank lives (or is not reaped yet)
  rank::RankState state = rank::kRankNone;
  uint64_t wait_status = 0;
  uint64_t exit_mono_ns = 0;
  std::string tag;                // HOLDFAST_KEEPER_RANK in the environment that the kernel shows
  std::string program;            // for messages
  std::string working_directory;  // for messages

  RecorderMemory recorder;
  ArenaMemory arena;
  uint32_t arena_link = 0;  // who waits for kArena, and with which request
  rank::Message arena_request;
  bool allocating = false;

  LogFile log;
  UniqueFd output;
  UniqueFd report;
  uint32_t start_request = 0;  // of kStart, until kStarted or kStartFailed is sent

  bool alive() const { return pid != 0; }
};

}  // namespace holdfast::keeper

#endif  // HOLDFAST_AGENT_KEEPER_RANK_SLOT_H_
