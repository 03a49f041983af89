// SPDX-License-Identifier: Apache-2.0
#include "tests/rank/agreement.h"

#include <errno.h>

namespace holdfast::test_rank {
namespace {

using client::Error;

constexpr int64_t kMeetTimeoutMs = 600'000;
constexpr int kNotReadyShift = 16, kStopShift = 32,
              kSaveShift = 48;  // four counters in one sum, 16 bits each

std::string CountKey(uint64_t meeting) { return "meet/" + std::to_string(meeting) + "/count"; }
std::string AnswerKey(uint64_t meeting) { return "meet/" + std::to_string(meeting) + "/answer"; }

uint64_t Part(uint64_t sum, int shift) { return (sum >> shift) & 0xffff; }

}  // namespace

// The last to arrive says what all said, and clears away the meeting before: everybody has left
// that one.
Error Agreement::Decide(uint64_t sum) {
  std::string answer;
  answer += Part(sum, kNotReadyShift) == 0 ? 'r' : '-';
  answer += Part(sum, kStopShift) != 0 ? 's' : '-';
  answer += Part(sum, kSaveShift) != 0 ? 'p' : '-';
  if (Error error = session_->StoreSet(AnswerKey(meeting_), answer)) return error;
  if (meeting_ == 1) return {};
  bool existed = false;
  if (Error error = session_->StoreDelete(CountKey(meeting_ - 1), &existed)) return error;
  return session_->StoreDelete(AnswerKey(meeting_ - 1), &existed);
}

Error Agreement::Meet(const Wish& mine, Wish* all) {
  ++meeting_;
  if (session_->Detached()) {
    *all = mine;
    return {};
  }
  const int64_t delta = 1 + (int64_t{!mine.snapshot_ready} << kNotReadyShift) +
                        (int64_t{mine.stop} << kStopShift) + (int64_t{mine.save} << kSaveShift);
  int64_t sum = 0;
  if (Error error = session_->StoreAdd(CountKey(meeting_), delta, &sum)) return error;
  if (Part(static_cast<uint64_t>(sum), 0) == session_->world_size()) {
    if (Error error = Decide(static_cast<uint64_t>(sum))) return error;
  }
  std::string answer;
  if (Error error = session_->StoreGet(AnswerKey(meeting_), kMeetTimeoutMs, &answer)) return error;
  if (answer.size() != 3)
    return {EPROTO,
            "meeting " + std::to_string(meeting_) + ": the answer '" + answer + "' is not one"};
  all->snapshot_ready = answer[0] == 'r';
  all->stop = answer[1] == 's';
  all->save = answer[2] == 'p';
  return {};
}

}  // namespace holdfast::test_rank
