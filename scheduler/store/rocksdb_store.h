// SPDX-License-Identifier: Apache-2.0
// The state store on RocksDB: one batch is one synced write.
#ifndef HOLDFAST_SCHEDULER_STORE_ROCKSDB_STORE_H_
#define HOLDFAST_SCHEDULER_STORE_ROCKSDB_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/store/state_store.h"

namespace holdfast::sched {

// Opens or creates the database directory. Errors name the directory: DATA_LOSS when it is damaged
// or holds no state of ours, FAILED_PRECONDITION when a newer version wrote it, UNAVAILABLE when
// another process has it open.
absl::StatusOr<std::unique_ptr<StateStore>> OpenRocksDbStore(const std::string& directory);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_STORE_ROCKSDB_STORE_H_
