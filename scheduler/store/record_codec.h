// SPDX-License-Identifier: Apache-2.0
// How a record lies in the store: "HF", the format version, the kind, then the protobuf message. A
// newer version is refused, so that an older scheduler never rewrites what it does not understand.
// Pure.
#ifndef HOLDFAST_SCHEDULER_STORE_RECORD_CODEC_H_
#define HOLDFAST_SCHEDULER_STORE_RECORD_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"

namespace holdfast::sched {

inline constexpr uint8_t kRecordVersion = 1;
inline constexpr size_t kRecordHeaderBytes = 4;

enum class RecordKind : uint8_t {
  kMeta = 'm',
  kJob = 'j',
  kNode = 'n',
  kCheckpoint = 'c',
  kKey = 'k',
  kEvent = 'e',
  kLedger = 'l'
};

std::string EncodeRecord(RecordKind kind, const google::protobuf::MessageLite& message);
// DATA_LOSS for what is no record of that kind, FAILED_PRECONDITION for a newer version; both name
// `key`.
absl::Status DecodeRecord(RecordKind kind, std::string_view key, std::string_view value,
                          google::protobuf::MessageLite* message);

// Keys below the state's uuid: "<kind>/<number, 16 hex digits>" sorts by number; names are kept as
// they are.
std::string NumberKey(RecordKind kind, uint64_t number);
std::string CheckpointKey(uint64_t job, uint64_t step, uint64_t attempt);
std::string NameKey(RecordKind kind, std::string_view name);
std::string KindPrefix(RecordKind kind);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_STORE_RECORD_CODEC_H_
