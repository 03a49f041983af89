// SPDX-License-Identifier: Apache-2.0
// The instrument itself must be right: what it loses, and that it loses nothing else.
#include "base/testing/fault_file_system.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace holdfast::testing {
namespace {

std::unique_ptr<WritableFile> Create(FaultFileSystem& fs, const std::string& path,
                                     const std::string& content) {
  auto file = fs.CreateExclusive(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return nullptr;
  EXPECT_TRUE((*file)->Append(content.data(), content.size()).ok());
  return *std::move(file);
}

TEST(FaultFileSystemTest, KeepsSyncedBytesUnderSyncedNames) {
  FaultFileSystem fs;
  auto file = Create(fs, "/a", "hello");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(fs.SyncDir("/").ok());
  fs.Reboot(Loss::kAll, 1);
  EXPECT_EQ(*fs.ReadFile("/a"), "hello");
}

TEST(FaultFileSystemTest, LosesANameWhoseDirectoryWasNotSynced) {
  FaultFileSystem fs;
  auto file = Create(fs, "/a", "hello");
  ASSERT_TRUE(file->Sync().ok());
  fs.Reboot(Loss::kAll, 1);
  EXPECT_TRUE(absl::IsNotFound(fs.ReadFile("/a").status()));
}

TEST(FaultFileSystemTest, LosesBytesThatWereNotSyncedUnderANameThatWas) {
  FaultFileSystem fs;
  auto file = Create(fs, "/a", "hello");
  ASSERT_TRUE(fs.SyncDir("/").ok());
  fs.Reboot(Loss::kAll, 1);
  EXPECT_EQ(*fs.ReadFile("/a"), "");
  EXPECT_FALSE(file->Sync().ok()) << "a file opened before the reboot must be dead";
}

TEST(FaultFileSystemTest, UndoesARenameThatWasNotSynced) {
  FaultFileSystem fs;
  ASSERT_TRUE(fs.WriteFileDurably("/a", "old").ok());
  auto file = Create(fs, "/b", "new");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(fs.SyncDir("/").ok());
  ASSERT_TRUE(fs.Rename("/b", "/a").ok());
  EXPECT_EQ(*fs.ReadFile("/a"), "new");
  fs.Reboot(Loss::kAll, 1);
  EXPECT_EQ(*fs.ReadFile("/a"), "old");
  EXPECT_EQ(*fs.ReadFile("/b"), "new");
}

TEST(FaultFileSystemTest, DiesAtThePlannedOperationAndStaysDead) {
  FaultFileSystem fs;
  fs.Plan(2, Fault::kCrash);
  auto file = fs.CreateExclusive("/a");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->Append("x", 1).ok());
  EXPECT_TRUE(fs.Dead());
  EXPECT_FALSE(fs.ReadFile("/a").ok());
  EXPECT_FALSE(fs.List("/").ok());
  fs.Reboot(Loss::kNothing, 1);
  EXPECT_EQ(*fs.ReadFile("/a"), "");
}

TEST(FaultFileSystemTest, CrashAfterLetsTheOperationHappen) {
  FaultFileSystem fs;
  auto file = fs.CreateExclusive("/a");
  fs.Plan(1, Fault::kCrashAfter);
  EXPECT_FALSE((*file)->Append("x", 1).ok());
  fs.Reboot(Loss::kNothing, 1);
  EXPECT_EQ(*fs.ReadFile("/a"), "x");
}

TEST(FaultFileSystemTest, AFileWhoseSyncFailedStaysPoisoned) {
  FaultFileSystem fs;
  auto file = Create(fs, "/a", "hello");
  fs.Plan(1, Fault::kEio);
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(file->Append("x", 1).ok());
}

TEST(FaultFileSystemTest, ENospcWritesHalf) {
  FaultFileSystem fs;
  auto file = fs.CreateExclusive("/a");
  fs.Plan(1, Fault::kEnospc);
  EXPECT_TRUE(absl::IsResourceExhausted((*file)->Append("abcd", 4)));
  EXPECT_EQ(*fs.ReadFile("/a"), "ab");
}

TEST(FaultFileSystemTest, WriteFileDurablyHoldsOldOrNewAfterACrashAnywhere) {
  for (const Loss loss : {Loss::kAll, Loss::kKeepNames, Loss::kNothing, Loss::kRandom}) {
    bool finished = false;
    for (uint64_t at = 1; !finished; ++at) {
      ASSERT_LT(at, 100u);
      FaultFileSystem fs;
      ASSERT_TRUE(fs.WriteFileDurably("/a", "old").ok());
      fs.Plan(at, Fault::kCrashAfter);
      const bool ok = fs.WriteFileDurably("/a", "new").ok();
      finished = fs.Operations() < at;
      fs.Reboot(loss, at);
      const std::string after = *fs.ReadFile("/a");
      EXPECT_TRUE(after == "old" || after == "new") << after;
      if (ok) {
        EXPECT_EQ(after, "new") << "reported durable, but lost";
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::testing
