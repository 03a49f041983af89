// SPDX-License-Identifier: Apache-2.0
// Crash enumeration of the save: the machine dies, or an operation fails, at every single operation
// of a save, with every kind of loss of what was not synced. Afterwards the old checkpoint is there
// bit for bit, the new one is there bit for bit or not at all, what was acknowledged is never lost,
// what is called prepared is whole, and a new save succeeds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/testing/fault_file_system.h"
#include "ckpt/pack_reader.h"
#include "ckpt/store.h"
#include "ckpt/testing/test_world.h"

namespace holdfast::ckpt {
namespace {

using holdfast::testing::Fault;
using holdfast::testing::FaultFileSystem;
using holdfast::testing::Loss;
using testing::Cut;
using testing::TestTensor;

constexpr uint64_t kOldSeed = 1, kNewSeed = 2;
const CheckpointId kOld{JobId{42}, 1, 10}, kNew{JobId{42}, 1, 20};
const Cut kCut{2, 1};

std::vector<TestTensor> Model() {
  return {{"w", rank::kF32, {48, 40}}, {"b", rank::kU8, {4099}}, {"s", rank::kF64, {}}};
}

// What the caller of the store was told.
struct Told {
  std::set<uint32_t> prepared;  // ranks whose PrepareRank returned OK
  bool committed = false;
  bool failed = false;
};

Told SaveNew(Store* store) {
  Told told;
  std::vector<RankManifest> manifests;
  for (uint32_t rank = 0; rank < kCut.world_size(); ++rank) {
    absl::StatusOr<RankManifest> manifest =
        testing::SaveRank(store, kNew, kNewSeed, Model(), kCut, rank);
    if (!manifest.ok()) {
      told.failed = true;
      return told;
    }
    told.prepared.insert(rank);
    manifests.push_back(*std::move(manifest));
  }
  const absl::StatusOr<CommitRecord> record = JoinManifests(manifests, testing::kTestCommitWallNs);
  EXPECT_TRUE(record.ok()) << record.status();
  told.committed = record.ok() && store->WriteCommit(kNew, EncodeCommitRecord(*record)).ok();
  told.failed = !told.committed;
  return told;
}

struct Scene {
  FaultFileSystem fs;
  std::unique_ptr<Store> store;
  Scene() { Reopen(); }
  void Reopen() {
    store.reset();
    absl::StatusOr<std::unique_ptr<Store>> opened = Store::Open(&fs, "/s", {});
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) store = *std::move(opened);
  }
  bool SaveOld() { return testing::SaveAll(store.get(), kOld, kOldSeed, Model(), kCut).ok(); }
};

void ExpectWhole(Store* store, const CheckpointId& id, uint64_t seed) {
  const absl::Status verified = store->Verify(id, nullptr),
                     same = testing::CheckAll(store, id, seed, Model());
  EXPECT_TRUE(verified.ok()) << ToString(id) << ": " << verified;
  EXPECT_TRUE(same.ok()) << ToString(id) << ": " << same;
}

// Every prepared manifest must have its whole pack, and every acknowledged one must be listed.
void ExpectPreparedIsTrue(Scene& s, const Told& told) {
  const absl::StatusOr<std::vector<RankManifest>> prepared = s.store->ListPrepared(kNew.job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  std::set<uint32_t> listed;
  for (const RankManifest& m : *prepared) {
    listed.insert(m.rank);
    auto pack = PackReader::Open(&s.fs, "/s/" + CheckpointDirName(m.id) + "/" + m.pack, m);
    ASSERT_TRUE(pack.ok()) << pack.status();
    const absl::Status whole = (*pack)->VerifyAll(nullptr);
    EXPECT_TRUE(whole.ok()) << whole;
  }
  for (const uint32_t rank : told.prepared)
    EXPECT_EQ(listed.count(rank), 1u) << "rank " << rank << " was acknowledged and lost";
}

// The state of the store after a save that met a fault. `with_old`: the old checkpoint was
// committed before.
void ExpectConsistent(Scene& s, const Told& told, bool with_old) {
  ASSERT_NE(s.store, nullptr);
  if (with_old) ExpectWhole(s.store.get(), kOld, kOldSeed);
  const bool there = s.store->ReadCommit(kNew).ok();
  if (told.committed) {
    EXPECT_TRUE(there) << "the commit was acknowledged and is lost";
  }
  const absl::StatusOr<CheckpointId> newest = s.store->Newest(kNew.job, ~0ull);
  if (there) {
    ExpectWhole(s.store.get(), kNew, kNewSeed);
    EXPECT_EQ(*newest, kNew);
    EXPECT_TRUE(s.store->ListPrepared(kNew.job)->empty());
    return;
  }
  EXPECT_EQ(newest.ok(), with_old) << "an uncommitted checkpoint must not be seen";
  if (newest.ok()) {
    EXPECT_EQ(*newest, kOld);
  }
  ExpectPreparedIsTrue(s, told);
}

// Then life goes on: with or without cleaning up first, the save succeeds.
void ExpectNextSaveWorks(Scene& s, bool clean_first, bool with_old) {
  if (!s.store->ReadCommit(kNew).ok()) {
    if (clean_first) {
      const absl::Status removed = s.store->RemoveUncommitted(kNew);
      EXPECT_TRUE(removed.ok()) << removed;
      EXPECT_FALSE(*s.fs.Exists("/s/" + CheckpointDirName(kNew)));
    }
    const Told again = SaveNew(s.store.get());
    EXPECT_TRUE(again.committed);
  }
  s.fs.Reboot(Loss::kAll, 7);
  s.Reopen();
  ExpectWhole(s.store.get(), kNew, kNewSeed);
  if (with_old) ExpectWhole(s.store.get(), kOld, kOldSeed);
}

constexpr Loss kLosses[] = {Loss::kAll,    Loss::kKeepNames, Loss::kNothing,
                            Loss::kRandom, Loss::kRandom,    Loss::kRandom};

uint64_t OperationsOfASave() {
  Scene s;
  EXPECT_TRUE(s.SaveOld());
  s.fs.Plan(0, Fault::kNone);
  EXPECT_TRUE(SaveNew(s.store.get()).committed);
  return s.fs.Operations();
}

TEST(SaveCrashTest, AtEveryOperationWithEveryLoss) {
  const uint64_t operations = OperationsOfASave();
  ASSERT_GT(operations, 20u);
  uint64_t seed = 1, committed_unacknowledged = 0;
  for (uint64_t at = 1; at <= operations; ++at) {
    for (const Fault fault : {Fault::kCrash, Fault::kCrashAfter}) {
      for (const Loss loss : kLosses) {
        SCOPED_TRACE(::testing::Message() << "operation " << at << " of " << operations
                                          << ", fault " << static_cast<int>(fault) << ", loss "
                                          << static_cast<int>(loss) << ", seed " << seed);
        Scene s;
        ASSERT_TRUE(s.SaveOld());
        s.fs.Plan(at, fault);
        const Told told = SaveNew(s.store.get());
        ASSERT_TRUE(told.failed && s.fs.Dead());
        s.fs.Reboot(loss, ++seed);
        s.Reopen();
        ExpectConsistent(s, told, true);
        committed_unacknowledged += s.store->ReadCommit(kNew).ok();
        ExpectNextSaveWorks(s, seed % 2 == 0, true);
        if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
      }
    }
  }
  EXPECT_GT(committed_unacknowledged, 0u)
      << "some crashes come after the commit point: the enumeration must reach them";
}

TEST(SaveCrashTest, AtEveryOperationOfTheFirstSaveIntoANewStore) {
  uint64_t seed = 1000;
  bool finished = false;
  for (uint64_t at = 1; !finished; ++at) {
    ASSERT_LT(at, 200u);
    for (const Loss loss : kLosses) {
      SCOPED_TRACE(::testing::Message() << "operation " << at << ", loss " << static_cast<int>(loss)
                                        << ", seed " << seed);
      Scene s;
      s.store.reset();
      for (const std::string& file : s.fs.AllFiles()) ASSERT_TRUE(s.fs.Remove(file).ok());
      ASSERT_TRUE(s.fs.RemoveDir("/s").ok());
      ASSERT_TRUE(s.fs.SyncDir("/").ok());
      s.fs.Plan(at, Fault::kCrashAfter);
      Told told;
      absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(&s.fs, "/s", {});
      if (store.ok()) told = SaveNew(store->get());
      finished = !s.fs.Dead();
      s.fs.Reboot(loss, ++seed);
      s.Reopen();
      ExpectConsistent(s, told, false);
      ExpectNextSaveWorks(s, seed % 2 == 0, false);
      if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
    }
  }
}

TEST(SaveErrorTest, AtEveryOperation) {
  const uint64_t operations = OperationsOfASave();
  uint64_t failures = 0;
  for (uint64_t at = 1; at <= operations; ++at) {
    for (const Fault fault : {Fault::kEio, Fault::kEnospc}) {
      SCOPED_TRACE(::testing::Message() << "operation " << at << " of " << operations << ", fault "
                                        << static_cast<int>(fault));
      Scene s;
      ASSERT_TRUE(s.SaveOld());
      s.fs.Plan(at, fault);
      const Told told = SaveNew(s.store.get());
      failures += told.failed;
      s.fs.Plan(0, Fault::kNone);
      ExpectConsistent(s, told, true);
      for (const std::string& file : s.fs.AllFiles()) {
        EXPECT_EQ(file.find(kTemporaryInfix), std::string::npos) << file << " is left behind";
      }
      if (at % 2 == 0) {  // half of them also lose the power afterwards
        s.fs.Reboot(Loss::kAll, at);
        s.Reopen();
        ExpectConsistent(s, told, true);
      }
      ExpectNextSaveWorks(s, at % 4 < 2, true);
      if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
    }
  }
  EXPECT_EQ(failures, 2 * operations) << "an operation that failed was ignored";
}

TEST(RemoveCrashTest, AtEveryOperation) {
  uint64_t seed = 5000;
  bool finished = false;
  for (uint64_t at = 1; !finished; ++at) {
    ASSERT_LT(at, 100u);
    for (const Loss loss : kLosses) {
      SCOPED_TRACE(::testing::Message() << "operation " << at << ", loss " << static_cast<int>(loss)
                                        << ", seed " << seed);
      Scene s;
      ASSERT_TRUE(s.SaveOld());
      for (uint32_t rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(testing::SaveRank(s.store.get(), kNew, kNewSeed, Model(), kCut, rank).ok());
      }
      s.fs.Plan(at, Fault::kCrashAfter);
      const bool removed = s.store->RemoveUncommitted(kNew).ok();
      finished = !s.fs.Dead();
      s.fs.Reboot(loss, ++seed);
      s.Reopen();
      ExpectConsistent(s, Told{}, true);
      if (removed) {
        EXPECT_FALSE(*s.fs.Exists("/s/" + CheckpointDirName(kNew)));
      }
      ExpectNextSaveWorks(s, seed % 2 == 0, true);
      if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
    }
  }
}

// A process made the directories, or a whole checkpoint of another job, and died before anything of
// it was synced; what the next one acknowledges must not hang on names that are not durable.
TEST(SaveCrashTest, StandsOnNothingThatADeadProcessLeftUnsynced) {
  for (const bool saved : {false, true}) {
    Scene s;
    s.store.reset();
    for (const std::string& file : s.fs.AllFiles()) ASSERT_TRUE(s.fs.Remove(file).ok());
    ASSERT_TRUE(s.fs.RemoveDir("/s").ok());
    ASSERT_TRUE(s.fs.SyncDir("/").ok());
    // Of files it is the sync that comes before the rename; names may be there unsynced.
    s.fs.IgnoreSyncs([](const std::string& path) {
      return path.find("FORMAT") == std::string::npos && path.find("rank-") == std::string::npos &&
             path.find("COMMIT") == std::string::npos;
    });
    s.Reopen();
    if (saved) {
      ASSERT_TRUE(s.SaveOld());
    }
    s.fs.IgnoreSyncs(nullptr);
    s.Reopen();
    ASSERT_TRUE(SaveNew(s.store.get()).committed);
    s.fs.Reboot(Loss::kAll, 1);
    s.Reopen();
    ExpectWhole(s.store.get(), kNew, kNewSeed);
  }
}

// The negative control: were any one of these syncs forgotten, an acknowledged checkpoint would be
// lost, and the checks of these tests see it.
TEST(SaveCrashTest, NoticesEachSyncThatIsForgotten) {
  const std::string dir = "/s/" + CheckpointDirName(kNew), job_dir = "/s/jobs/j-42";
  const std::vector<std::function<bool(const std::string&)>> forgotten = {
      [](const std::string& path) { return path.find("rank-00001.pack") != std::string::npos; },
      [](const std::string& path) { return path.find("COMMIT") != std::string::npos; },
      [&](const std::string& path) { return path == dir; },
      [&](const std::string& path) { return path == job_dir; },
  };
  for (size_t i = 0; i < forgotten.size(); ++i) {
    Scene s;
    ASSERT_TRUE(s.SaveOld());
    s.fs.IgnoreSyncs(forgotten[i]);
    ASSERT_TRUE(SaveNew(s.store.get()).committed);
    s.fs.IgnoreSyncs(nullptr);
    s.fs.Reboot(Loss::kAll, 1);
    s.Reopen();
    EXPECT_FALSE(s.store->Verify(kNew, nullptr).ok()) << "forgotten sync " << i;
    ExpectWhole(s.store.get(), kOld, kOldSeed);
  }
  // The manifest's own sync matters to what is prepared.
  Scene s;
  ASSERT_TRUE(s.SaveOld());
  s.fs.IgnoreSyncs(
      [](const std::string& path) { return path.find(".manifest") != std::string::npos; });
  ASSERT_TRUE(testing::SaveRank(s.store.get(), kNew, kNewSeed, Model(), kCut, 0).ok());
  s.fs.Reboot(Loss::kAll, 1);
  EXPECT_TRUE(s.store->ListPrepared(kNew.job)->empty());
}

// The same on a real disk, with io_uring, by a process that kills itself at a named point. The
// process is started afresh: it reads the point's name once.
void SaveAndDie(const std::string& root, const char* point) {
  ::setenv("HOLDFAST_KILL_POINT", point, 1);
  auto store = Store::Open(PosixFileSystem(), root, {});
  const bool ok =
      store.ok() && testing::SaveAll(store->get(), kOld, kOldSeed, Model(), {1, 1}).ok();
  std::_Exit(ok ? 0 : 1);
}

TEST(SaveKillDeathTest, AtEveryNamedPoint) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  // A fixed name: the process that dies computes it again.
  const char* tmp = std::getenv("TMPDIR");
  const std::string root = std::string(tmp != nullptr ? tmp : "/tmp") + "/holdfast-save-kill-" +
                           std::to_string(::getuid());
  for (const char* point :
       {"ckpt.pack.rename:before", "ckpt.pack.rename:after", "ckpt.manifest:before",
        "ckpt.manifest:after", "ckpt.commit:before", "ckpt.commit:after"}) {
    SCOPED_TRACE(point);
    EXPECT_EXIT(SaveAndDie(root, point), ::testing::KilledBySignal(SIGKILL), "");
    auto store = Store::Open(PosixFileSystem(), root, {});
    ASSERT_TRUE(store.ok()) << store.status();
    const bool committed = std::string(point) == "ckpt.commit:after";
    EXPECT_EQ((*store)->ReadCommit(kOld).ok(), committed);
    if (committed) {
      ExpectWhole(store->get(), kOld, kOldSeed);
    } else {
      EXPECT_TRUE((*store)->RemoveUncommitted(kOld).ok());
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
}

}  // namespace
}  // namespace holdfast::ckpt
