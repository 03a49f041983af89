// SPDX-License-Identifier: Apache-2.0
// One test for every kind of state store.
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/store/memory_store.h"
#include "scheduler/store/record_codec.h"
#include "scheduler/store/records.pb.h"
#include "scheduler/store/rocksdb_store.h"

namespace holdfast::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Opens the same content again and again.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<StateStore> Open() = 0;
};

class MemoryBackend : public Backend {
 public:
  std::unique_ptr<StateStore> Open() override { return std::make_unique<MemoryStore>(content_); }

 private:
  std::shared_ptr<MemoryContent> content_ = std::make_shared<MemoryContent>();
};

std::string TempDir() {
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base != nullptr ? base : "/tmp") + "/hf-store-XXXXXX";
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  return path;
}

class RocksBackend : public Backend {
 public:
  ~RocksBackend() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<StateStore> Open() override {
    auto store = OpenRocksDbStore(directory_ + "/db");
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

 private:
  std::string directory_ = TempDir();
};

class StoreConformance : public ::testing::TestWithParam<std::string> {
 protected:
  StoreConformance() {
    if (GetParam() == "memory") {
      backend_ = std::make_unique<MemoryBackend>();
    } else {
      backend_ = std::make_unique<RocksBackend>();
    }
  }
  static std::vector<std::string> Keys(const StateStore& store, std::string_view prefix,
                                       std::string_view after = "") {
    std::vector<std::string> keys;
    EXPECT_TRUE(store
                    .Scan(prefix, after,
                          [&](std::string_view key, std::string_view) {
                            keys.emplace_back(key);
                            return true;
                          })
                    .ok());
    return keys;
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(StoreConformance, BatchesAreKeptAcrossOpens) {
  std::string uuid;
  {
    auto store = backend_->Open();
    ASSERT_NE(store, nullptr);
    uuid = store->uuid();
    EXPECT_EQ(uuid.size(), 32u);
    Batch batch;
    batch.puts = {{"a/1", "one"}, {"a/2", std::string("t\0o", 3)}, {"b/1", ""}};
    ASSERT_TRUE(store->Apply(batch).ok());
    Batch second;
    second.puts = {{"a/1", "uno"}};
    second.deletes = {"b/1", "never/there"};
    ASSERT_TRUE(store->Apply(second).ok());
  }
  auto store = backend_->Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->uuid(), uuid);
  EXPECT_EQ(store->Get("a/1")->value(), "uno");
  EXPECT_EQ(store->Get("a/2")->value(), std::string("t\0o", 3));
  EXPECT_FALSE(store->Get("b/1")->has_value());
}

TEST_P(StoreConformance, ScansInOrderWithinThePrefix) {
  auto store = backend_->Open();
  ASSERT_NE(store, nullptr);
  Batch batch;
  batch.puts = {{"e/2", "x"}, {"e/1", "x"}, {"e/3", "x"}, {"f/1", "x"}, {"d/9", "x"}};
  ASSERT_TRUE(store->Apply(batch).ok());
  EXPECT_THAT(Keys(*store, "e/"), ElementsAre("e/1", "e/2", "e/3"));
  EXPECT_THAT(Keys(*store, "e/", "e/1"), ElementsAre("e/2", "e/3"));
  EXPECT_THAT(Keys(*store, "e/", "e/15"), ElementsAre("e/2", "e/3"));
  EXPECT_THAT(Keys(*store, "e/", "e/3"), ElementsAre());
  int seen = 0;
  ASSERT_TRUE(
      store->Scan("e/", "", [&](std::string_view, std::string_view) { return ++seen < 2; }).ok());
  EXPECT_EQ(seen, 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreConformance, ::testing::Values("memory", "rocksdb"),
                         [](const auto& kind) { return kind.param; });

TEST(MemoryStoreTest, DiesBeforeOrAfterAWriteTookEffect) {
  for (const bool applied : {false, true}) {
    auto content = std::make_shared<MemoryContent>();
    MemoryStore store(content);
    store.DieAtWrite(2, applied);
    Batch batch;
    batch.puts = {{"k", "1"}};
    EXPECT_TRUE(store.Apply(batch).ok());
    batch.puts = {{"k", "2"}};
    EXPECT_FALSE(store.Apply(batch).ok());
    EXPECT_TRUE(store.dead());
    EXPECT_FALSE(store.Get("k").ok());
    MemoryStore next(content);
    EXPECT_EQ(next.Get("k")->value(), applied ? "2" : "1");
  }
}

TEST(RocksDbStoreTest, ASecondOpenOfTheSameStateFails) {
  RocksBackend backend;
  auto first = backend.Open();
  ASSERT_NE(first, nullptr);
  const std::string directory = TempDir();
  {
    auto a = OpenRocksDbStore(directory + "/db");
    ASSERT_TRUE(a.ok());
    const auto b = OpenRocksDbStore(directory + "/db");
    EXPECT_EQ(b.status().code(), absl::StatusCode::kUnavailable) << b.status();
    EXPECT_THAT(b.status().message(), HasSubstr(directory));
  }
  std::filesystem::remove_all(directory);
}

// A file system of its own, so that it can be full.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) : path_(TempDir()) {
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(path_);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool mounted_ = false;
};

Batch Put(const std::string& key, std::string value) {
  Batch batch;
  batch.puts.emplace_back(key, std::move(value));
  return batch;
}

TEST(RocksDbStoreTest, AFullDiskRefusesEachWriteAndRoomAgainTakesThem) {
  const SmallDisk disk("size=16m");
  if (!disk.mounted()) GTEST_SKIP() << "needs root: mount of a small tmpfs";
  auto opened = OpenRocksDbStore(disk.path() + "/db");
  ASSERT_TRUE(opened.ok()) << opened.status();
  StateStore& store = **opened;
  ASSERT_TRUE(store.Apply(Put("before", "1")).ok());
  const std::string ballast = disk.path() + "/ballast";
  std::ofstream(ballast) << std::string(10 << 20, 'x');
  absl::Status refused;
  for (int i = 0; i < 100 && refused.ok(); ++i)
    refused = store.Apply(Put("big", std::string(64 << 10, 'y')));
  ASSERT_FALSE(refused.ok()) << "the disk is not full";
  EXPECT_THAT(refused.message(), HasSubstr(disk.path()));
  for (int i = 0; i < 5; ++i)
    EXPECT_FALSE(store.Apply(Put("again", std::string(64 << 10, 'z'))).ok()) << i;
  EXPECT_EQ(**store.Get("before"), "1") << "what is there can be read all the while";
  std::filesystem::remove(ballast);
  ASSERT_TRUE(store.Apply(Put("after", "2")).ok());
  opened->reset();
  auto again = OpenRocksDbStore(disk.path() + "/db");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(**(*again)->Get("before"), "1");
  EXPECT_EQ(**(*again)->Get("after"), "2");
}

TEST(RocksDbStoreTest, AWriteThatFailedInTheMiddleIsNotThereAndTheNextOneIs) {
  const std::string directory = TempDir();
  auto opened = OpenRocksDbStore(directory + "/db");
  ASSERT_TRUE(opened.ok()) << opened.status();
  StateStore& store = **opened;
  ASSERT_TRUE(store.Apply(Put("before", "1")).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status refused = store.Apply(Put("big", std::string(1 << 20, 'y')));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(store.Apply(Put("after", "2")).ok());
  EXPECT_EQ(**store.Get("before"), "1");
  EXPECT_EQ(**store.Get("after"), "2");
  EXPECT_FALSE(store.Get("big")->has_value());
  opened->reset();
  std::filesystem::remove_all(directory);
}

TEST(RecordCodec, RefusesNewerVersionsAndOtherKinds) {
  records::MetaRecord meta, read;
  meta.set_next_job(42);
  std::string value = EncodeRecord(RecordKind::kMeta, meta);
  ASSERT_TRUE(DecodeRecord(RecordKind::kMeta, "m/x", value, &read).ok());
  EXPECT_EQ(read.next_job(), 42u);
  EXPECT_EQ(DecodeRecord(RecordKind::kJob, "j/x", value, &read).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeRecord(RecordKind::kMeta, "m/x", "HF", &read).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeRecord(RecordKind::kMeta, "m/x", value.substr(0, 5), &read).code(),
            absl::StatusCode::kDataLoss);
  value[2] = kRecordVersion + 1;
  const absl::Status newer = DecodeRecord(RecordKind::kMeta, "m/x", value, &read);
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(newer.message(), HasSubstr("m/x"));
}

TEST(RecordCodec, KeysSortByNumber) {
  EXPECT_LT(NumberKey(RecordKind::kEvent, 9), NumberKey(RecordKind::kEvent, 10));
  EXPECT_LT(NumberKey(RecordKind::kEvent, 0xffff), NumberKey(RecordKind::kEvent, 0x10000));
  EXPECT_LT(CheckpointKey(1, 9, 5), CheckpointKey(1, 10, 1));
}

}  // namespace
}  // namespace holdfast::sched
