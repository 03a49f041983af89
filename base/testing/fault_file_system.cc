// SPDX-License-Identifier: Apache-2.0
#include "base/testing/fault_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::testing {
namespace {

constexpr size_t kPageBytes = 4096;

// splitmix64: the same losses for the same seed on every machine.
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

absl::Status Missing(const std::string& what) { return ErrnoStatus(ENOENT, what); }

}  // namespace

class FaultFile final : public WritableFile {
 public:
  FaultFile(FaultFileSystem* fs, FaultFileSystem::InodePtr inode, uint64_t boot, std::string path)
      : fs_(fs),
        inode_(std::move(inode)),
        boot_(boot),
        path_(std::move(path)),
        end_(inode_->bytes.size()) {}
  absl::Status Append(const void* data, size_t bytes) override {
    return WriteAt(end_, data, bytes);
  }
  absl::Status WriteAt(uint64_t offset, const void* data, size_t bytes) override {
    end_ = std::max(end_, offset + bytes);
    return fs_->WriteInode(inode_, boot_, path_, offset, data, bytes);
  }
  absl::Status Preallocate(uint64_t bytes) override {
    HF_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs_->FreeBytes(path_));
    return bytes <= free_bytes ? absl::OkStatus() : ErrnoStatus(ENOSPC, "preallocate " + path_);
  }
  absl::Status Sync() override { return fs_->SyncInode(inode_, boot_, path_); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  FaultFileSystem* const fs_;
  const FaultFileSystem::InodePtr inode_;
  const uint64_t boot_;
  const std::string path_;
  uint64_t end_;
};

class FaultReader final : public ReadableFile {
 public:
  FaultReader(FaultFileSystem* fs, FaultFileSystem::InodePtr inode, std::string path)
      : fs_(fs), inode_(std::move(inode)), path_(std::move(path)) {}
  absl::StatusOr<size_t> ReadAt(uint64_t offset, void* out, size_t bytes) const override {
    return fs_->ReadInode(inode_, path_, offset, out, bytes);
  }
  absl::StatusOr<uint64_t> Size() const override {
    MutexLock lock(fs_->mutex_);
    return inode_->bytes.size();
  }

 private:
  FaultFileSystem* const fs_;
  const FaultFileSystem::InodePtr inode_;
  const std::string path_;
};

FaultFileSystem::FaultFileSystem() : root_(std::make_shared<Inode>()) { root_->dir = true; }
FaultFileSystem::~FaultFileSystem() = default;

void FaultFileSystem::Plan(uint64_t at, Fault fault) {
  MutexLock lock(mutex_);
  operations_ = 0;
  fault_at_ = at;
  fault_ = fault;
}

uint64_t FaultFileSystem::Operations() const {
  MutexLock lock(mutex_);
  return operations_;
}

bool FaultFileSystem::Dead() const {
  MutexLock lock(mutex_);
  return dead_;
}

void FaultFileSystem::SetFreeBytes(uint64_t bytes) {
  MutexLock lock(mutex_);
  free_bytes_ = bytes;
}

void FaultFileSystem::IgnoreSyncs(std::function<bool(const std::string& path)> which) {
  MutexLock lock(mutex_);
  ignored_syncs_ = std::move(which);
}

void FaultFileSystem::FailReads(const std::string& path) {
  MutexLock lock(mutex_);
  fail_reads_ = true;
  fail_reads_of_ = path;
}

absl::Status FaultFileSystem::DeadError(const std::string& what) const {
  return absl::UnavailableError(absl::StrCat(what, ": the machine is down"));
}

// Counts an operation; an error means that it must not happen.
absl::Status FaultFileSystem::Begin(const std::string& what) {
  if (dead_) return DeadError(what);
  if (++operations_ != fault_at_) return absl::OkStatus();
  switch (fault_) {
    case Fault::kCrash:
      dead_ = true;
      return DeadError(what);
    case Fault::kEio:
      return ErrnoStatus(EIO, what);
    case Fault::kEnospc:
      return ErrnoStatus(ENOSPC, what);
    case Fault::kNone:
    case Fault::kCrashAfter:
      break;
  }
  return absl::OkStatus();
}

// After an operation that happened.
absl::Status FaultFileSystem::End(const std::string& what) {
  if (operations_ != fault_at_ || fault_ != Fault::kCrashAfter) return absl::OkStatus();
  dead_ = true;
  return DeadError(what);
}

FaultFileSystem::InodePtr FaultFileSystem::Find(const std::string& path) const {
  InodePtr at = root_;
  for (const std::string& part : Components(path)) {
    const auto found = at->entries.find(part);
    if (found == at->entries.end()) return nullptr;
    at = found->second;
  }
  return at;
}

absl::StatusOr<FaultFileSystem::Place> FaultFileSystem::FindPlace(const std::string& path) const {
  std::vector<std::string> parts = Components(path);
  if (parts.empty()) return absl::InvalidArgumentError("the root is no place for a name");
  const std::string name = parts.back();
  const InodePtr dir = Find(path.substr(0, path.rfind(name)));
  if (dir == nullptr || !dir->dir) return Missing(path);
  return Place{dir, name};
}

void FaultFileSystem::Apply(const Change& change, Entries* entries) {
  for (const auto& [name, inode] : change) {
    if (inode == nullptr) {
      entries->erase(name);
    } else {
      (*entries)[name] = inode;
    }
  }
}

void FaultFileSystem::ChangeEntries(Inode* dir, Change change) {
  Apply(change, &dir->entries);
  dir->unsynced.push_back(std::move(change));
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::CreateExclusive(
    const std::string& path) {
  MutexLock lock(mutex_);
  HF_RETURN_IF_ERROR(Begin("create " + path));
  HF_ASSIGN_OR_RETURN(const Place place, FindPlace(path));
  if (place.dir->entries.count(place.name) > 0) return ErrnoStatus(EEXIST, "create " + path);
  const InodePtr inode = std::make_shared<Inode>();
  ChangeEntries(place.dir.get(), {{place.name, inode}});
  HF_RETURN_IF_ERROR(End("create " + path));
  return std::unique_ptr<WritableFile>(new FaultFile(this, inode, boot_, path));
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::OpenForAppend(
    const std::string& path) {
  {
    MutexLock lock(mutex_);
    if (dead_) return DeadError("open " + path);
    if (const InodePtr inode = Find(path); inode != nullptr) {
      return std::unique_ptr<WritableFile>(new FaultFile(this, inode, boot_, path));
    }
  }
  return CreateExclusive(path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultFileSystem::OpenForRead(
    const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return DeadError("open " + path);
  const InodePtr inode = Find(path);
  if (inode == nullptr) return Missing("open " + path);
  if (inode->dir)
    return absl::InvalidArgumentError(absl::StrCat("open ", path, ": is a directory"));
  return std::unique_ptr<ReadableFile>(new FaultReader(this, inode, path));
}

absl::Status FaultFileSystem::WriteInode(const InodePtr& inode, uint64_t boot,
                                         const std::string& path, uint64_t offset, const void* data,
                                         size_t bytes) {
  MutexLock lock(mutex_);
  if (boot != boot_) return DeadError("write " + path);
  if (inode->poisoned) return ErrnoStatus(EIO, "write " + path + " after an earlier error");
  const absl::Status status = Begin("write " + path);
  if (dead_) return status;
  const bool half = !status.ok() && fault_ == Fault::kEnospc;
  const size_t taken = status.ok() ? bytes : half ? bytes / 2 : 0;
  inode->poisoned = !status.ok();
  if (taken > 0) {
    inode->bytes.resize(std::max<size_t>(inode->bytes.size(), offset + taken), '\0');
    std::memcpy(inode->bytes.data() + offset, data, taken);
  }
  HF_RETURN_IF_ERROR(status);
  return End("write " + path);
}

absl::Status FaultFileSystem::SyncInode(const InodePtr& inode, uint64_t boot,
                                        const std::string& path) {
  MutexLock lock(mutex_);
  if (boot != boot_) return DeadError("sync " + path);
  if (inode->poisoned) return ErrnoStatus(EIO, "sync " + path + " after an earlier error");
  const absl::Status status = Begin("sync " + path);
  if (dead_) return status;
  inode->poisoned = !status.ok();
  HF_RETURN_IF_ERROR(status);
  if (!ignored_syncs_ || !ignored_syncs_(path)) inode->durable_bytes = inode->bytes;
  return End("sync " + path);
}

absl::StatusOr<size_t> FaultFileSystem::ReadInode(const InodePtr& inode, const std::string& path,
                                                  uint64_t offset, void* out, size_t bytes) {
  MutexLock lock(mutex_);
  if (dead_) return DeadError("read " + path);
  if (fail_reads_ && (fail_reads_of_.empty() || fail_reads_of_ == path))
    return ErrnoStatus(EIO, "read " + path);
  if (offset >= inode->bytes.size()) return size_t{0};
  const size_t got = std::min<size_t>(bytes, inode->bytes.size() - offset);
  std::memcpy(out, inode->bytes.data() + offset, got);
  return got;
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  const std::string what = absl::StrCat("rename ", from, " to ", to);
  HF_RETURN_IF_ERROR(Begin(what));
  HF_ASSIGN_OR_RETURN(const Place source, FindPlace(from));
  HF_ASSIGN_OR_RETURN(const Place target, FindPlace(to));
  const auto found = source.dir->entries.find(source.name);
  if (found == source.dir->entries.end()) return Missing(what);
  const InodePtr inode = found->second;
  if (source.dir == target.dir) {  // atomic: one change
    ChangeEntries(source.dir.get(), {{source.name, nullptr}, {target.name, inode}});
  } else {
    ChangeEntries(target.dir.get(), {{target.name, inode}});
    ChangeEntries(source.dir.get(), {{source.name, nullptr}});
  }
  return End(what);
}

absl::Status FaultFileSystem::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  HF_RETURN_IF_ERROR(Begin("remove " + path));
  HF_ASSIGN_OR_RETURN(const Place place, FindPlace(path));
  const auto found = place.dir->entries.find(place.name);
  if (found == place.dir->entries.end()) return Missing("remove " + path);
  if (found->second->dir) return ErrnoStatus(EISDIR, "remove " + path);
  ChangeEntries(place.dir.get(), {{place.name, nullptr}});
  return End("remove " + path);
}

absl::Status FaultFileSystem::MakeOneDir(const std::string& path) {
  HF_RETURN_IF_ERROR(Begin("make directory " + path));
  HF_ASSIGN_OR_RETURN(const Place place, FindPlace(path));
  const InodePtr dir = std::make_shared<Inode>();
  dir->dir = true;
  ChangeEntries(place.dir.get(), {{place.name, dir}});
  return End("make directory " + path);
}

absl::Status FaultFileSystem::MakeDirs(const std::string& path) {
  std::string at, parent = "/";
  for (const std::string& part : Components(path)) {
    at += "/" + part;
    {
      MutexLock lock(mutex_);
      if (dead_) return DeadError("make directory " + at);
      const InodePtr inode = Find(at);
      if (inode != nullptr && !inode->dir) return ErrnoStatus(ENOTDIR, "make directory " + at);
      if (inode != nullptr) {
        parent = at;
        continue;
      }
      HF_RETURN_IF_ERROR(MakeOneDir(at));
    }
    HF_RETURN_IF_ERROR(SyncDir(parent));
    parent = at;
  }
  return absl::OkStatus();
}

absl::Status FaultFileSystem::RemoveDir(const std::string& path) {
  MutexLock lock(mutex_);
  HF_RETURN_IF_ERROR(Begin("remove directory " + path));
  HF_ASSIGN_OR_RETURN(const Place place, FindPlace(path));
  const auto found = place.dir->entries.find(place.name);
  if (found == place.dir->entries.end()) return Missing("remove directory " + path);
  if (!found->second->entries.empty()) return ErrnoStatus(ENOTEMPTY, "remove directory " + path);
  ChangeEntries(place.dir.get(), {{place.name, nullptr}});
  return End("remove directory " + path);
}

absl::Status FaultFileSystem::SyncDir(const std::string& path) {
  MutexLock lock(mutex_);
  HF_RETURN_IF_ERROR(Begin("sync directory " + path));
  const InodePtr dir = Find(path);
  if (dir == nullptr || !dir->dir) return Missing("sync directory " + path);
  if (!ignored_syncs_ || !ignored_syncs_(path)) {
    dir->durable_entries = dir->entries;
    dir->unsynced.clear();
  }
  return End("sync directory " + path);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return DeadError("list " + path);
  const InodePtr dir = Find(path);
  if (dir == nullptr || !dir->dir) return Missing("list " + path);
  std::vector<std::string> names;
  for (const auto& [name, inode] : dir->entries) names.push_back(name);
  return names;
}

absl::StatusOr<bool> FaultFileSystem::Exists(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return DeadError("stat " + path);
  return Find(path) != nullptr;
}

absl::StatusOr<uint64_t> FaultFileSystem::FreeBytes(const std::string& path) {
  MutexLock lock(mutex_);
  if (dead_) return DeadError("statvfs " + path);
  return free_bytes_;
}

// Turns what is seen into what a power cut leaves.
void FaultFileSystem::Settle(Inode* inode, Loss loss, uint64_t* random) {
  if (!inode->dir) {
    if (loss == Loss::kAll || loss == Loss::kKeepNames) inode->bytes = inode->durable_bytes;
    if (loss == Loss::kRandom) {
      std::string mixed = inode->durable_bytes;
      if (NextRandom(random) % 2 == 0)
        mixed.resize(std::max(mixed.size(), inode->bytes.size()), '\0');
      for (size_t at = 0; at < std::min(mixed.size(), inode->bytes.size()); at += kPageBytes) {
        const size_t bytes = std::min({kPageBytes, mixed.size() - at, inode->bytes.size() - at});
        if (NextRandom(random) % 2 == 0)
          std::memcpy(mixed.data() + at, inode->bytes.data() + at, bytes);
      }
      inode->bytes = mixed;
    }
    inode->durable_bytes = inode->bytes;
    inode->poisoned = false;
    return;
  }
  size_t kept = inode->unsynced.size();
  if (loss == Loss::kAll) kept = 0;
  if (loss == Loss::kRandom) kept = NextRandom(random) % (inode->unsynced.size() + 1);
  inode->entries = inode->durable_entries;
  for (size_t i = 0; i < kept; ++i) Apply(inode->unsynced[i], &inode->entries);
  inode->durable_entries = inode->entries;
  inode->unsynced.clear();
  for (const auto& [name, child] : inode->entries) Settle(child.get(), loss, random);
}

void FaultFileSystem::Reboot(Loss loss, uint64_t seed) {
  MutexLock lock(mutex_);
  Settle(root_.get(), loss, &seed);
  ++boot_;
  dead_ = false;
  fault_ = Fault::kNone;
  fault_at_ = operations_ = 0;
  fail_reads_ = false;
}

bool FaultFileSystem::FlipByte(const std::string& path, uint64_t offset, uint8_t mask) {
  MutexLock lock(mutex_);
  const InodePtr inode = Find(path);
  if (inode == nullptr || inode->dir || offset >= inode->bytes.size()) return false;
  inode->bytes[offset] = static_cast<char>(inode->bytes[offset] ^ mask);
  inode->durable_bytes = inode->bytes;
  return true;
}

void FaultFileSystem::CutFile(const std::string& path, uint64_t bytes) {
  MutexLock lock(mutex_);
  const InodePtr inode = Find(path);
  if (inode == nullptr || inode->dir) return;
  inode->bytes.resize(bytes);
  inode->durable_bytes = inode->bytes;
}

void FaultFileSystem::ListFiles(const Inode& dir, const std::string& prefix,
                                std::vector<std::string>* out) const {
  for (const auto& [name, inode] : dir.entries) {
    const std::string path = prefix + "/" + name;
    if (inode->dir) {
      ListFiles(*inode, path, out);
    } else {
      out->push_back(path);
    }
  }
}

std::vector<std::string> FaultFileSystem::AllFiles() const {
  MutexLock lock(mutex_);
  std::vector<std::string> files;
  ListFiles(*root_, "", &files);
  return files;
}

}  // namespace holdfast::testing
