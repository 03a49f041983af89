// SPDX-License-Identifier: Apache-2.0
// A file system in memory that fails on purpose, for tests. It keeps apart what a running system
// sees and what would be there after a power cut: file contents become durable by Sync, names by
// SyncDir (files too: creating, renaming and removing are entries of their directory).
//
// Every call that changes something (create, write, sync, rename, remove, mkdir, rmdir, syncdir) is
// one operation, counted from 1. A plan makes one of them fail, or the machine die there; after a
// death every call fails until Reboot(). Threads: safe to share.
#ifndef HOLDFAST_BASE_TESTING_FAULT_FILE_SYSTEM_H_
#define HOLDFAST_BASE_TESTING_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/mutex.h"

namespace holdfast::testing {

enum class Fault {
  kNone,
  kCrash,       // the operation does not happen and the machine is dead
  kCrashAfter,  // the operation happens, then the machine is dead
  kEio,         // the operation does not happen
  kEnospc,      // a write puts half of its bytes, anything else does not happen
};

// What a power cut leaves of what was never synced.
enum class Loss {
  kAll,        // nothing: names and bytes are those of the last syncs
  kKeepNames,  // names survive, unsynced bytes do not (the classical empty file after a rename)
  kNothing,    // everything survives
  kRandom,     // of each directory a random prefix of its changes, of each file random pages
};

class FaultFileSystem final : public FileSystem {
 public:
  FaultFileSystem();
  ~FaultFileSystem() override;

  // The operation numbered `at` (counted from the call of Plan) meets `fault`.
  void Plan(uint64_t at, Fault fault);
  uint64_t Operations() const;  // since the last Plan
  bool Dead() const;
  // The power comes back: open files are gone, what was not synced is lost as `loss` says. Clears
  // the plan.
  void Reboot(Loss loss, uint64_t seed);

  // Syncs of these paths (files by the name they were created with, directories) report success and
  // do nothing: a disk that lies, or a program that forgot them. For showing that a test would
  // notice.
  void IgnoreSyncs(std::function<bool(const std::string& path)> which);

  void SetFreeBytes(uint64_t bytes);
  // Flips bits of one stored byte, durably. False when there is no such byte.
  bool FlipByte(const std::string& path, uint64_t offset, uint8_t mask);
  // Reads of the file fail with EIO until the next reboot; of any file when path is empty.
  void FailReads(const std::string& path);
  void CutFile(const std::string& path, uint64_t bytes);
  std::vector<std::string> AllFiles() const;  // paths, sorted

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeDirs(const std::string& path) override;
  absl::Status RemoveDir(const std::string& path) override;
  absl::Status SyncDir(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;

 private:
  friend class FaultFile;
  friend class FaultReader;
  struct Inode;
  using InodePtr = std::shared_ptr<Inode>;
  using Entries = std::map<std::string, InodePtr>;
  // One change of a directory: in order, each name gets an inode or (null) loses it.
  using Change = std::vector<std::pair<std::string, InodePtr>>;
  struct Inode {
    bool dir = false;
    std::string bytes, durable_bytes;
    bool poisoned = false;  // a write or sync failed
    Entries entries, durable_entries;
    std::vector<Change> unsynced;  // since the last SyncDir
  };
  // A place in the tree: the directory and the last component.
  struct Place {
    InodePtr dir;
    std::string name;
  };

  absl::Status Begin(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status End(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeadError(const std::string& what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  InodePtr Find(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Place> FindPlace(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Apply(const Change& change, Entries* entries);
  static void ChangeEntries(Inode* dir, Change change);
  absl::Status MakeOneDir(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Inode* inode, Loss loss, uint64_t* random) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ListFiles(const Inode& dir, const std::string& prefix, std::vector<std::string>* out) const;

  absl::Status WriteInode(const InodePtr& inode, uint64_t boot, const std::string& path,
                          uint64_t offset, const void* data, size_t bytes);
  absl::Status SyncInode(const InodePtr& inode, uint64_t boot, const std::string& path);
  absl::StatusOr<size_t> ReadInode(const InodePtr& inode, const std::string& path, uint64_t offset,
                                   void* out, size_t bytes);

  mutable Mutex mutex_;
  InodePtr root_ ABSL_GUARDED_BY(mutex_);
  uint64_t boot_ ABSL_GUARDED_BY(mutex_) = 0;  // files opened before a reboot are dead
  uint64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fault_at_ ABSL_GUARDED_BY(mutex_) = 0;
  Fault fault_ ABSL_GUARDED_BY(mutex_) = Fault::kNone;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t free_bytes_ ABSL_GUARDED_BY(mutex_) = 1ull << 40;
  std::function<bool(const std::string&)> ignored_syncs_ ABSL_GUARDED_BY(mutex_);
  bool fail_reads_ ABSL_GUARDED_BY(mutex_) = false;
  std::string fail_reads_of_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace holdfast::testing

#endif  // HOLDFAST_BASE_TESTING_FAULT_FILE_SYSTEM_H_
