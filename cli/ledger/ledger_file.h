// SPDX-License-Identifier: Apache-2.0
// The ledger of `holdfast run`: its scheduler ends with the run, so what was found in it is kept in
// a file of the user, a proto3 JSON LedgerEntry a line. Runs at the same time append to it in turn.
// At kLedgerFileBytesMax it is moved to <path>.old, in place of the one before.
//
// Errors name the file. Threads: any; processes: any.
#ifndef HOLDFAST_CLI_LEDGER_LEDGER_FILE_H_
#define HOLDFAST_CLI_LEDGER_LEDGER_FILE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::cli {

inline constexpr size_t kLedgerFileBytesMax = 16 << 20;
inline constexpr char kLedgerVariable[] = "HOLDFAST_LEDGER";

// $HOLDFAST_LEDGER, else ~/.local/state/holdfast/ledger.jsonl; "" when the variable is empty or
// there is no home: then nothing is kept.
std::string LedgerPath();

// Makes the directory when it is missing.
absl::Status AppendLedger(const std::string& path, const std::vector<v1::LedgerEntry>& entries);

// Of <path>.old and <path>, oldest first. NOT_FOUND when there is neither. A line that is no entry
// is skipped and counted in `skipped`.
absl::StatusOr<std::vector<v1::LedgerEntry>> ReadLedger(const std::string& path, size_t* skipped);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_LEDGER_LEDGER_FILE_H_
