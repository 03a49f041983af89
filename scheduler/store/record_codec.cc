// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/record_codec.h"

#include "absl/strings/str_cat.h"

namespace holdfast::sched {

std::string EncodeRecord(RecordKind kind, const google::protobuf::MessageLite& message) {
  std::string out = {'H', 'F', static_cast<char>(kRecordVersion), static_cast<char>(kind)};
  message.AppendToString(&out);
  return out;
}

absl::Status DecodeRecord(RecordKind kind, std::string_view key, std::string_view value,
                          google::protobuf::MessageLite* message) {
  if (value.size() < kRecordHeaderBytes || value[0] != 'H' || value[1] != 'F') {
    return absl::DataLossError(absl::StrCat("record ", std::string(key), ": ", value.size(),
                                            " bytes without a record header"));
  }
  const auto version = static_cast<uint8_t>(value[2]);
  if (version > kRecordVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "record ", std::string(key), " has version ", version, ", this scheduler reads up to ",
        kRecordVersion, "; start the newer version of holdfast-scheduler"));
  }
  if (static_cast<uint8_t>(value[3]) != static_cast<uint8_t>(kind)) {
    return absl::DataLossError(absl::StrCat("record ", std::string(key), ": kind '",
                                            std::string(value.substr(3, 1)), "' instead of '",
                                            std::string(1, static_cast<char>(kind)), "'"));
  }
  value.remove_prefix(kRecordHeaderBytes);
  if (!message->ParseFromArray(value.data(), static_cast<int>(value.size()))) {
    return absl::DataLossError(absl::StrCat("record ", std::string(key), ": ", value.size(),
                                            " bytes are not a ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

std::string KindPrefix(RecordKind kind) { return {static_cast<char>(kind), '/'}; }

std::string NumberKey(RecordKind kind, uint64_t number) {
  return absl::StrCat(KindPrefix(kind), absl::Hex(number, absl::kZeroPad16));
}

std::string CheckpointKey(uint64_t job, uint64_t step, uint64_t attempt) {
  return absl::StrCat(NumberKey(RecordKind::kCheckpoint, job), "/",
                      absl::Hex(step, absl::kZeroPad16), "/", absl::Hex(attempt, absl::kZeroPad16));
}

std::string NameKey(RecordKind kind, std::string_view name) {
  return KindPrefix(kind).append(name);
}

}  // namespace holdfast::sched
