// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"

namespace holdfast::sched {
namespace {

// The only key without a uuid before it: "<format version> <uuid>".
constexpr char kIdentityKey[] = "holdfast-scheduler-state";
constexpr int kStoreVersion = 1;
constexpr size_t kUuidChars = 32;
constexpr size_t kWalBytesMax = 64 << 20;
constexpr uint64_t kFreeBytesMin = 4 << 20;  // RocksDB writes more than it is given

absl::Status FromRocks(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(std::string(what), ": ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(text);
  if (status.IsNoSpace() || status.IsMemoryLimit()) return absl::ResourceExhaustedError(text);
  if (status.IsNotFound()) return absl::NotFoundError(text);
  if (status.IsInvalidArgument()) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

rocksdb::Slice ToSlice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view FromSlice(const rocksdb::Slice& s) { return {s.data(), s.size()}; }

// RocksDB's own log goes to ours, from warnings on: a LOG file on a full disk would be one more
// file whose failed writes it asserts about.
class LogToOurs final : public rocksdb::Logger {
 public:
  LogToOurs() : rocksdb::Logger(rocksdb::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[1024];
    std::vsnprintf(line, sizeof line, format, arguments);
    spdlog::warn("state: {}", std::string(absl::StripTrailingAsciiWhitespace(line)));
  }
};

absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDb(const std::string& directory) {
  HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(directory));
  rocksdb::Options options;
  options.create_if_missing = true;
  options.max_total_wal_size = kWalBytesMax;
  options.info_log = std::make_shared<LogToOurs>();
  options.max_background_jobs = 2;
  options.paranoid_checks = true;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  rocksdb::DB* raw = nullptr;
  HF_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(options, directory, &raw),
                               absl::StrCat("open the state in ", directory)));
  return std::unique_ptr<rocksdb::DB>(raw);
}

class RocksDbStore final : public StateStore {
 public:
  RocksDbStore(std::unique_ptr<rocksdb::DB> db, std::string directory)
      : db_(std::move(db)), directory_(std::move(directory)) {}

  absl::Status Identify() {
    std::string identity;
    const rocksdb::Status read = db_->Get(rocksdb::ReadOptions(), kIdentityKey, &identity);
    if (read.IsNotFound()) return Create();
    HF_RETURN_IF_ERROR(FromRocks(read, directory_));
    const size_t space = identity.find(' ');
    const int version = std::atoi(identity.c_str());
    if (space == std::string::npos || version < 1 || identity.size() != space + 1 + kUuidChars) {
      return absl::DataLossError(absl::StrCat(directory_, ": the identity record is damaged"));
    }
    if (version > kStoreVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory_, " has store version ", version, ", this scheduler reads up to ",
                       kStoreVersion, "; start the newer version of holdfast-scheduler"));
    }
    SetUuid(identity.substr(space + 1));
    return absl::OkStatus();
  }

  const std::string& uuid() const override { return uuid_; }

  absl::Status Apply(const Batch& batch) override {
    rocksdb::WriteBatch write;
    for (const auto& [key, value] : batch.puts) {
      HF_RETURN_IF_ERROR(FromRocks(write.Put(prefix_ + key, value), directory_));
    }
    for (const std::string& key : batch.deletes)
      HF_RETURN_IF_ERROR(FromRocks(write.Delete(prefix_ + key), directory_));
    HF_RETURN_IF_ERROR(PrepareToWrite(write.GetDataSize()));
    rocksdb::WriteOptions options;
    options.sync = true;
    const rocksdb::Status written = db_->Write(options, &write);
    write_failed_ = !written.ok();
    return FromRocks(written, absl::StrCat("write to ", directory_));
  }

  absl::StatusOr<std::optional<std::string>> Get(std::string_view key) const override {
    if (db_ == nullptr) return Closed();
    std::string value;
    const rocksdb::Status status =
        db_->Get(rocksdb::ReadOptions(), prefix_ + std::string(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    HF_RETURN_IF_ERROR(
        FromRocks(status, absl::StrCat("read ", std::string(key), " of ", directory_)));
    return std::optional<std::string>(std::move(value));
  }

  absl::Status Scan(
      std::string_view prefix, std::string_view after,
      const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    if (db_ == nullptr) return Closed();
    const std::string full_prefix = prefix_ + std::string(prefix);
    const std::string start = after.empty() ? full_prefix : prefix_ + std::string(after);
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    for (it->Seek(ToSlice(start)); it->Valid() && it->key().starts_with(full_prefix); it->Next()) {
      std::string_view key = FromSlice(it->key());
      if (!after.empty() && key == start) continue;
      key.remove_prefix(prefix_.size());
      if (!visit(key, FromSlice(it->value()))) break;
    }
    return FromRocks(it->status(), absl::StrCat("scan ", directory_));
  }

 private:
  // A write that RocksDB has begun and cannot finish leaves a log file that must not be written to
  // again (it asserts that), so room is looked for before, and what failed all the same is opened
  // anew: what was acknowledged is in the log.
  absl::Status PrepareToWrite(size_t bytes) {
    struct statvfs disk {};
    if (::statvfs(directory_.c_str(), &disk) != 0)
      return ErrnoStatus(errno, absl::StrCat("statvfs ", directory_));
    const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    if (free < kFreeBytesMin + 2 * bytes) {
      // In MiB: the message must not change with every look.
      return absl::ResourceExhaustedError(absl::StrCat(
          "write to ", directory_, ": its disk has ", free >> 20, " MiB free, more than ",
          (kFreeBytesMin + 2 * bytes) >> 20, " MiB are needed; make room there"));
    }
    if (!write_failed_ && db_ != nullptr) return absl::OkStatus();
    db_.reset();
    HF_ASSIGN_OR_RETURN(db_, OpenDb(directory_));
    write_failed_ = false;
    return absl::OkStatus();
  }

  absl::Status Closed() const {
    return absl::UnavailableError(absl::StrCat(
        directory_, " is closed after a failed write and could not be opened again yet"));
  }

  absl::Status Create() {
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    if (it->Valid())
      return absl::DataLossError(
          absl::StrCat(directory_, " is a database, but not a scheduler's state"));
    const std::string uuid = NewStateUuid();
    rocksdb::WriteOptions options;
    options.sync = true;
    HF_RETURN_IF_ERROR(FromRocks(
        db_->Put(options, kIdentityKey, absl::StrCat(kStoreVersion, " ", uuid)), directory_));
    SetUuid(uuid);
    return absl::OkStatus();
  }

  void SetUuid(const std::string& uuid) {
    uuid_ = uuid;
    prefix_ = uuid + "/";
  }

  std::unique_ptr<rocksdb::DB> db_;  // null: closed after a failed write
  const std::string directory_;
  std::string uuid_, prefix_;
  bool write_failed_ = false;  // the newest write
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenRocksDbStore(const std::string& directory) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> db, OpenDb(directory));
  auto store = std::make_unique<RocksDbStore>(std::move(db), directory);
  HF_RETURN_IF_ERROR(store->Identify());
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace holdfast::sched
