// SPDX-License-Identifier: Apache-2.0
#include "ckpt/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/testing/fault_file_system.h"
#include "base/testing/temp_dir.h"
#include "ckpt/client/snapshot.h"
#include "ckpt/format/pack.h"
#include "ckpt/testing/test_world.h"

namespace holdfast::ckpt {
namespace {

using testing::Cut;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestModel;
using testing::TestTensor;

const CheckpointId kId{JobId{42}, 3, 100};
constexpr char kDir[] = "/s/jobs/j-42/100.3";

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(&fs_, "/s", {});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::string File(const std::string& name) { return std::string(kDir) + "/" + name; }
  holdfast::testing::FaultFileSystem fs_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, SavesCommitsAndReadsBack) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 2}).ok());
  EXPECT_TRUE(testing::CheckAll(store_.get(), kId, 1, TestModel()).ok());
  EXPECT_TRUE(store_->Verify(kId, nullptr).ok());
  EXPECT_EQ(*fs_.List(kDir),
            (std::vector<std::string>{"COMMIT", "rank-00000.manifest", "rank-00000.pack",
                                      "rank-00001.manifest", "rank-00001.pack",
                                      "rank-00002.manifest", "rank-00003.manifest"}))
      << "ranks with replicas alone write no pack";
}

TEST_F(StoreTest, ReadsAnyCutOfAnyCut) {
  const Cut cuts[] = {{1, 1}, {2, 1}, {2, 2, true}, {3, 1, true}, {4, 1}};
  uint64_t step = 0;
  for (const Cut& stored : cuts) {
    const CheckpointId id{JobId{42}, 1, ++step};
    ASSERT_TRUE(testing::SaveAll(store_.get(), id, step, TestModel(), stored).ok());
    const CommitRecord record = *store_->ReadCommit(id);
    for (const Cut& wanted : cuts) {
      for (uint32_t rank = 0; rank < wanted.world_size(); ++rank) {
        for (testing::OwnedBox& box : testing::RankState(step, TestModel(), wanted, rank)) {
          std::vector<char> got(box.bytes.size() + 1, 'x');
          const Box cut{box.view.box_offset, box.view.box_size};
          const absl::Status status = store_->ReadBox(record, box.view.name, cut, got.data());
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_EQ(got.back(), 'x');
          got.pop_back();
          ASSERT_EQ(got, box.bytes) << box.view.name;
        }
      }
    }
  }
}

TEST_F(StoreTest, ReadsBoxesInTheMiddleOfFourDimensions) {
  const std::vector<TestTensor> model = {{"t", rank::kI16, {4, 5, 6, 7}}};
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 9, model, {2, 1, true}).ok());
  const CommitRecord record = *store_->ReadCommit(kId);
  const Box boxes[] = {{{1, 1, 1, 1}, {2, 3, 4, 5}}, {{0, 0, 0, 2}, {4, 5, 6, 3}},
                       {{3, 4, 5, 6}, {1, 1, 1, 1}}, {{0, 2, 0, 0}, {4, 2, 6, 7}},
                       {{2, 0, 3, 0}, {1, 5, 2, 7}}, {{1, 1, 1, 1}, {0, 1, 1, 1}}};
  for (const Box& box : boxes) {
    const std::vector<char> expected = testing::BoxBytes(9, model[0], box);
    std::vector<char> got(expected.size());
    const absl::Status status = store_->ReadBox(record, "t", box, got.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(got, expected);
  }
  char byte;
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_->ReadBox(record, "t", {{0, 0, 0, 0}, {5, 1, 1, 1}}, &byte)));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->ReadBox(record, "t", {{0}, {1}}, &byte)));
  EXPECT_TRUE(absl::IsNotFound(store_->ReadBox(record, "u", {{0}, {1}}, &byte)));
}

TEST_F(StoreTest, TheStateDigestDependsOnTheStateAlone) {
  std::set<std::string> digests;
  uint64_t step = 0;
  for (const Cut& cut : {Cut{1, 1}, Cut{2, 1}, Cut{2, 2, true}, Cut{3, 1, true}}) {
    const CheckpointId id{JobId{42}, 1, ++step};
    ASSERT_TRUE(testing::SaveAll(store_.get(), id, 5, TestModel(), cut).ok());
    digests.insert(DigestHex(*store_->StateDigest(id)));
  }
  EXPECT_EQ(digests.size(), 1u);
  auto changed = [&](uint64_t seed, std::vector<TestTensor> model) {
    const CheckpointId id{JobId{42}, 1, ++step};
    EXPECT_TRUE(testing::SaveAll(store_.get(), id, seed, model, {2, 1}).ok());
    digests.insert(DigestHex(*store_->StateDigest(id)));
    return digests.size();
  };
  EXPECT_EQ(changed(6, TestModel()), 2u) << "other bytes";
  std::vector<TestTensor> model = TestModel();
  model[0].shape = {160, 96};
  EXPECT_EQ(changed(5, model), 3u) << "another shape";
  model = TestModel();
  model[0].dtype = rank::kI32;
  EXPECT_EQ(changed(5, model), 4u) << "another type";
}

TEST_F(StoreTest, FindsEveryFlippedByteOfRecordsAndManifests) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 1}).ok());
  for (const std::string& name : {std::string("COMMIT"), std::string("rank-00000.manifest"),
                                  std::string("rank-00001.manifest")}) {
    const size_t size = fs_.ReadFile(File(name))->size();
    for (size_t at = 0; at < size; ++at) {
      ASSERT_TRUE(fs_.FlipByte(File(name), at, static_cast<uint8_t>(1 << at % 8)));
      const absl::Status status = store_->Verify(kId, nullptr);
      ASSERT_FALSE(status.ok()) << name << " byte " << at;
      ASSERT_THAT(std::string(status.message()), HasSubstr(name));
      if (name == "COMMIT") {
        ASSERT_FALSE(store_->ReadCommit(kId).ok());
      }
      ASSERT_TRUE(fs_.FlipByte(File(name), at, static_cast<uint8_t>(1 << at % 8)));
    }
  }
  EXPECT_TRUE(store_->Verify(kId, nullptr).ok());
}

TEST_F(StoreTest, FindsFlippedBytesOfPacksWithFileAndOffset) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 1}).ok());
  const CommitRecord record = *store_->ReadCommit(kId);
  for (const RankManifest& m : record.ranks) {
    // Every byte of the header and of the table's start, and a stride over all the rest, padding
    // included.
    for (uint64_t at = 0; at < m.pack_bytes; at += at < 200 || at + 4096 > m.pack_bytes ? 1 : 211) {
      ASSERT_TRUE(fs_.FlipByte(File(m.pack), at, 0x20));
      const absl::Status status = store_->Verify(kId, nullptr);
      ASSERT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
          << m.pack << " byte " << at << ": " << status;
      ASSERT_THAT(std::string(status.message()), HasSubstr(File(m.pack)));
      ASSERT_TRUE(fs_.FlipByte(File(m.pack), at, 0x20));
    }
  }
  EXPECT_TRUE(store_->Verify(kId, nullptr).ok());
}

TEST_F(StoreTest, ReadBoxFindsAFlippedByteInsideAndOutsideTheCut) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 1}).ok());
  const CommitRecord record = *store_->ReadCommit(kId);
  const TensorRecord& t = record.ranks[1].tensors[0];
  for (const uint64_t at : {uint64_t{0}, t.bytes / 2, t.bytes - 1}) {
    ASSERT_TRUE(fs_.FlipByte(File("rank-00001.pack"), t.pack_offset + at, 1));
    std::vector<char> out(96 * 160 * 4);
    for (const Box& box : {Box{{0, 0}, {96, 160}}, Box{{40, 3}, {20, 20}}, t.box}) {
      const absl::Status status = store_->ReadBox(record, t.name, box, out.data());
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(File("rank-00001.pack") + ": tensor 'layers.0.weight' at offset " +
                            std::to_string(t.pack_offset)));
    }
    // What the damaged box does not hold can still be read.
    EXPECT_TRUE(store_->ReadBox(record, t.name, record.ranks[0].tensors[0].box, out.data()).ok());
    ASSERT_TRUE(fs_.FlipByte(File("rank-00001.pack"), t.pack_offset + at, 1));
  }
}

TEST_F(StoreTest, FindsTruncatedAndMissingFiles) {
  for (const char* name : {"rank-00000.pack", "rank-00001.manifest", "COMMIT"}) {
    holdfast::testing::FaultFileSystem fs;
    auto store = *Store::Open(&fs, "/s", {});
    ASSERT_TRUE(testing::SaveAll(store.get(), kId, 1, TestModel(), {2, 1}).ok());
    const uint64_t size = fs.OpenForRead(File(name)).value()->Size().value();
    for (uint64_t cut = size; cut > 0; cut = cut > size - 3 ? cut - 1 : cut / 2) {
      fs.CutFile(File(name), cut - 1);
      const absl::Status status = store->Verify(kId, nullptr);
      EXPECT_FALSE(status.ok()) << name << " cut to " << cut - 1;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 1}).ok());
  ASSERT_TRUE(fs_.Remove(File("rank-00001.pack")).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Verify(kId, nullptr)));
}

TEST_F(StoreTest, APackOfAnotherCheckpointIsRefused) {
  const CheckpointId other{JobId{42}, 3, 101};
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {1, 1}).ok());
  ASSERT_TRUE(testing::SaveAll(store_.get(), other, 1, TestModel(), {1, 1}).ok());
  ASSERT_TRUE(fs_.Rename("/s/jobs/j-42/101.3/rank-00000.pack", File("rank-00000.pack")).ok());
  EXPECT_TRUE(absl::IsDataLoss(store_->Verify(kId, nullptr)));
  ASSERT_TRUE(fs_.Rename("/s/jobs/j-42/101.3/COMMIT", File("COMMIT")).ok());
  EXPECT_TRUE(absl::IsDataLoss(store_->ReadCommit(kId).status()));
}

TEST_F(StoreTest, ReportsReadErrorsOfTheDisk) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {2, 1}).ok());
  fs_.FailReads(File("rank-00001.pack"));
  const absl::Status status = store_->Verify(kId, nullptr);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(File("rank-00001.pack")));
}

// ---- Saving ----

// A snapshot in an arena, claimed, of rank 0 of 1.
class Saved {
 public:
  explicit Saved(uint64_t seed = 1, const CheckpointId& id = kId)
      : boxes_(testing::RankState(seed, TestModel(), {1, 1}, 0)),
        views_(testing::Views(boxes_)),
        arena_(id.job.value, 0, 1, SnapshotBytes(views_)) {
    SnapshotWriter writer(arena_.base());
    std::string reason;
    ok_ = writer.Take(views_, id.attempt, id.step, 800, true, true, &buffer_, &reason) &&
          arena_.Claim(buffer_);
  }
  bool ok() const { return ok_; }
  testing::TestArena& arena() { return arena_; }
  uint32_t buffer() const { return buffer_; }
  SnapshotSource source() const { return {arena_.base(), arena_.bytes(), buffer_}; }

 private:
  std::vector<testing::OwnedBox> boxes_;
  std::vector<TensorView> views_;
  testing::TestArena arena_;
  uint32_t buffer_ = 0;
  bool ok_ = false;
};

TEST_F(StoreTest, ASnapshotThatChangedInMemoryIsSilentCorruptionAndLeavesNothing) {
  Saved saved;
  ASSERT_TRUE(saved.ok());
  saved.arena().Data(saved.buffer())[saved.arena().Table(saved.buffer())[0].data_offset + 777] ^= 8;
  const absl::Status status = store_->PrepareRank(kId, saved.source()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("silent corruption: tensor 'layers.0.weight' of rank 0"));
  EXPECT_FALSE(*fs_.Exists(kDir));
  saved.arena().Table(saved.buffer())[1].data_bytes ^= 8;
  EXPECT_TRUE(absl::IsDataLoss(store_->PrepareRank(kId, saved.source()).status()));
}

TEST_F(StoreTest, RefusesABufferThatIsNotClaimedOrHoldsAnotherSnapshot) {
  Saved saved;
  ASSERT_TRUE(saved.ok());
  for (const CheckpointId& id : {CheckpointId{JobId{41}, 3, 100}, CheckpointId{JobId{42}, 2, 100},
                                 CheckpointId{JobId{42}, 3, 99}}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->PrepareRank(id, saved.source()).status()));
  }
  SnapshotSource source = saved.source();
  source.buffer = 9;
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PrepareRank(kId, source).status()));
  source = saved.source();
  source.arena_bytes -= 4096;
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PrepareRank(kId, source).status()));
  ASSERT_TRUE(saved.arena().Release(saved.buffer(), false));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->PrepareRank(kId, saved.source()).status()));
}

TEST_F(StoreTest, SaysHowMuchRoomIsMissing) {
  Saved saved;
  fs_.SetFreeBytes(12345);
  const absl::Status status = store_->PrepareRank(kId, saved.source()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 12345 free"));
  EXPECT_FALSE(*fs_.Exists(kDir));
}

TEST_F(StoreTest, PreparingTwiceGivesTheSameManifest) {
  Saved saved;
  const RankManifest first = *store_->PrepareRank(kId, saved.source());
  fs_.Plan(0, holdfast::testing::Fault::kNone);
  const RankManifest second = *store_->PrepareRank(kId, saved.source());
  EXPECT_EQ(EncodeRankManifest(first), EncodeRankManifest(second));
  EXPECT_EQ(fs_.Operations(), 1u) << "only the directory is synced again";
  Saved other(2);
  const RankManifest third = *store_->PrepareRank(kId, other.source());
  EXPECT_NE(EncodeRankManifest(first), EncodeRankManifest(third)) << "another snapshot replaces it";
  EXPECT_TRUE(store_->WriteCommit(kId, EncodeCommitRecord(*JoinManifests({third}, 1))).ok());
  EXPECT_TRUE(testing::CheckAll(store_.get(), kId, 2, TestModel()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->PrepareRank(kId, other.source()).status()))
      << "committed";
}

TEST_F(StoreTest, ListsWhatIsPreparedAndRemovesIt) {
  const auto one = testing::SaveRank(store_.get(), kId, 1, TestModel(), {2, 1}, 1);
  ASSERT_TRUE(one.ok()) << one.status();
  const CheckpointId later{JobId{42}, 3, 110};
  ASSERT_TRUE(testing::SaveAll(store_.get(), later, 2, TestModel(), {1, 1}).ok());
  std::vector<RankManifest> prepared = *store_->ListPrepared(JobId{42});
  ASSERT_EQ(prepared.size(), 1u);
  EXPECT_EQ(EncodeRankManifest(prepared[0]), EncodeRankManifest(*one));
  EXPECT_TRUE(store_->ListPrepared(JobId{43})->empty());
  EXPECT_TRUE(absl::IsNotFound(store_->ReadCommit(kId).status()));
  EXPECT_EQ(*store_->Newest(JobId{42}, ~0ull), later);
  EXPECT_TRUE(absl::IsNotFound(store_->Newest(JobId{42}, 109).status()));
  EXPECT_TRUE(store_->RemoveUncommitted(kId).ok());
  EXPECT_TRUE(store_->RemoveUncommitted(kId).ok());
  EXPECT_FALSE(*fs_.Exists(kDir));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->RemoveUncommitted(later)));
  EXPECT_TRUE(store_->Verify(later, nullptr).ok());
}

TEST_F(StoreTest, AManifestWithoutItsWholePackIsNotPrepared) {
  ASSERT_TRUE(testing::SaveRank(store_.get(), kId, 1, TestModel(), {2, 1}, 0).ok());
  fs_.CutFile(File("rank-00000.pack"), 5000);
  EXPECT_TRUE(store_->ListPrepared(JobId{42})->empty());
}

TEST_F(StoreTest, CommitIsIdempotentAndKeepsTheFirst) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 1, TestModel(), {1, 1}).ok());
  CommitRecord record = *store_->ReadCommit(kId);
  EXPECT_TRUE(store_->WriteCommit(kId, EncodeCommitRecord(record)).ok());
  record.committed_wall_ns += 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->WriteCommit(kId, EncodeCommitRecord(record))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      store_->WriteCommit({JobId{42}, 3, 101}, EncodeCommitRecord(record))));
  EXPECT_FALSE(store_->WriteCommit({JobId{42}, 3, 101}, "nonsense").ok());
  EXPECT_FALSE(*fs_.Exists("/s/jobs/j-42/101.3"));
  // A damaged record is put right by its coordinator.
  record.committed_wall_ns -= 1;
  ASSERT_TRUE(fs_.FlipByte(File("COMMIT"), 100, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->RemoveUncommitted(kId)))
      << "damaged is not uncommitted";
  EXPECT_TRUE(store_->WriteCommit(kId, EncodeCommitRecord(record)).ok());
  EXPECT_TRUE(store_->Verify(kId, nullptr).ok());
}

TEST_F(StoreTest, NewestSkipsADamagedRecord) {
  ASSERT_TRUE(testing::SaveAll(store_.get(), {JobId{42}, 1, 10}, 1, TestModel(), {1, 1}).ok());
  ASSERT_TRUE(testing::SaveAll(store_.get(), kId, 2, TestModel(), {1, 1}).ok());
  ASSERT_TRUE(fs_.FlipByte(File("COMMIT"), 100, 1));
  EXPECT_EQ(*store_->Newest(JobId{42}, ~0ull), (CheckpointId{JobId{42}, 1, 10}));
  const std::vector<ListedCheckpoint> all = *store_->List();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[1].committed);
  EXPECT_THAT(all[1].problem, HasSubstr("COMMIT"));
}

TEST(StoreOpenTest, KnowsItsOwnDirectoryAndNoOther) {
  holdfast::testing::FaultFileSystem fs;
  StoreOptions look;
  look.create = false;
  EXPECT_TRUE(absl::IsNotFound(Store::Open(&fs, "/s", look).status()));
  EXPECT_FALSE(*fs.Exists("/s"));
  ASSERT_TRUE(Store::Open(&fs, "/s", {}).ok());
  EXPECT_TRUE(Store::Open(&fs, "/s", look).ok());
  ASSERT_TRUE(fs.WriteFileDurably("/s/FORMAT", "holdfast-store 2\n").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Store::Open(&fs, "/s", {}).status()));
  ASSERT_TRUE(fs.MakeDirs("/home").ok());
  ASSERT_TRUE(fs.WriteFileDurably("/home/thesis.tex", "x").ok());
  const absl::Status status = Store::Open(&fs, "/home", {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("thesis.tex"));
  EXPECT_FALSE(Store::Open(&fs, "", {}).ok());
}

// ---- On a real disk, by io_uring and without ----

TEST(StoreOnDiskTest, TheSameBytesByUringAndByPlainWrites) {
  holdfast::testing::TempDir dir;
  ASSERT_FALSE(dir.path().empty());
  // One tensor of several writes of 4 MiB, with a tail that is no whole page.
  std::vector<TestTensor> model = TestModel();
  model.push_back({"large", rank::kU8, {(9 << 20) + 77}});
  std::set<std::string> packs;
  for (const bool uring : {true, false}) {
    StoreOptions options;
    options.use_uring = uring;
    const std::string root = dir.Sub(uring ? "uring" : "plain");
    auto store = Store::Open(PosixFileSystem(), root, options);
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::Status saved = testing::SaveAll(store->get(), kId, 1, model, {1, 1});
    ASSERT_TRUE(saved.ok()) << saved;
    uint64_t last = 0;
    EXPECT_TRUE((*store)
                    ->Verify(kId,
                             [&](uint64_t done, uint64_t total) {
                               EXPECT_GE(done, last);
                               EXPECT_LE(done, total);
                               last = done;
                             })
                    .ok());
    EXPECT_EQ(last, (*store)->ReadCommit(kId)->total_bytes);
    EXPECT_TRUE(testing::CheckAll(store->get(), kId, 1, model).ok());
    packs.insert(*PosixFileSystem()->ReadFile(
        JoinPath(JoinPath(root, CheckpointDirName(kId)), "rank-00000.pack")));
  }
  EXPECT_EQ(packs.size(), 1u);
}

// ---- Golden files: what was written once must be read, and written again, for ever ----

constexpr char kGolden[] = "ckpt/testdata/store_v1";
constexpr char kGoldenDigest[] = "509c3610e442009230a2962a66ebe08a";

TEST(GoldenTest, AStoreOfVersionOneIsReadAndWrittenAgainByteForByte) {
  const CheckpointId id{JobId{7}, 2, 20};
  const std::vector<TestTensor> model = {
      {"w", rank::kF32, {6, 4}}, {"b", rank::kBF16, {5}}, {"n", rank::kI64, {}}};
  if (std::getenv("HOLDFAST_UPDATE_GOLDEN") != nullptr) {
    auto store = Store::Open(PosixFileSystem(), kGolden, {});
    ASSERT_TRUE(store.ok() && testing::SaveAll(store->get(), id, 11, model, {2, 1}).ok());
    FAIL() << "golden files written; digest " << DigestHex(*(*store)->StateDigest(id));
  }
  StoreOptions look;
  look.create = false;
  auto golden = Store::Open(PosixFileSystem(), kGolden, look);
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_TRUE((*golden)->Verify(id, nullptr).ok());
  EXPECT_TRUE(testing::CheckAll(golden->get(), id, 11, model).ok());
  EXPECT_EQ(DigestHex(*(*golden)->StateDigest(id)), kGoldenDigest);

  holdfast::testing::FaultFileSystem fs;
  auto store = *Store::Open(&fs, "/s", {});
  ASSERT_TRUE(testing::SaveAll(store.get(), id, 11, model, {2, 1}).ok());
  const std::vector<std::string> files = fs.AllFiles();
  EXPECT_EQ(files.size(), 6u);
  for (const std::string& file : files) {
    EXPECT_EQ(*fs.ReadFile(file), *PosixFileSystem()->ReadFile(kGolden + file.substr(2))) << file;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
