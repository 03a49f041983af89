// SPDX-License-Identifier: Apache-2.0
// Bulk files by io_uring: bytes right in every mode, each refusal falls back, each bad completion
// is an error, and memory is not given up while the kernel may read it.
#include "base/uring/uring_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/temp_dir.h"

namespace holdfast {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegionBytes = 9 << 20;  // more than two blocks of 4 MiB

// Page-aligned memory with a pattern that differs everywhere.
class Region {
 public:
  Region() {
    void* memory =
        ::mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
    for (size_t i = 0; data_ != nullptr && i < kRegionBytes; ++i)
      data_[i] = static_cast<char>(i * 2654435761u >> 13);
  }
  ~Region() {
    if (data_ != nullptr) ::munmap(data_, kRegionBytes);
  }
  char* data() const { return data_; }
  MemoryRegion region() const { return {data_, kRegionBytes}; }

 private:
  char* data_;
};

struct Mode {
  std::string name;
  UringOptions options;
  bool uses_ring = true;
};

UringOptions Quiet(std::vector<std::string>* notes) {
  UringOptions options;
  options.note = [notes](const std::string& text) { notes->push_back(text); };
  return options;
}

// A whole file as the checkpoint engine writes it: a page from elsewhere, the region, and a page
// from reused memory.
absl::Status WriteWhole(FileSystem* fs, const std::string& path, const Region& region) {
  absl::StatusOr<std::unique_ptr<WritableFile>> file = fs->CreateBulk(path, {region.region()});
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Preallocate(kRegionBytes + 2 * kPage);
  std::string page(kPage, 'a');
  if (status.ok()) status = (*file)->WriteAt(0, page.data(), page.size());
  page.assign(kPage, 'b');  // outside the regions: the file must have copied it already
  if (status.ok()) status = (*file)->WriteAt(kPage, region.data(), kRegionBytes);
  if (status.ok()) status = (*file)->WriteAt(kPage + kRegionBytes, page.data(), page.size());
  page.assign(kPage, 'c');
  if (status.ok()) status = (*file)->Sync();
  if (status.ok()) status = (*file)->Close();
  return status;
}

void ExpectWhole(const std::string& path, const Region& region) {
  absl::StatusOr<std::string> content = PosixFileSystem()->ReadFile(path);
  ASSERT_TRUE(content.ok()) << content.status();
  ASSERT_EQ(content->size(), kRegionBytes + 2 * kPage);
  EXPECT_EQ(content->substr(0, kPage), std::string(kPage, 'a'));
  EXPECT_EQ(std::memcmp(content->data() + kPage, region.data(), kRegionBytes), 0);
  EXPECT_EQ(content->substr(kPage + kRegionBytes), std::string(kPage, 'b'));
}

class UringTest : public ::testing::Test {
 protected:
  // Some places allow no io_uring at all; what needs a real ring is skipped there, the fallback
  // test is not.
  static bool RingAvailable() {
    io_uring ring;
    if (::io_uring_queue_init(4, &ring, 0) != 0) return false;
    ::io_uring_queue_exit(&ring);
    return true;
  }
  void SetUp() override {
    ASSERT_FALSE(dir_.path().empty());
    ASSERT_NE(region_.data(), nullptr);
  }
  absl::Status Write(const UringOptions& options) {
    const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
    return WriteWhole(fs.get(), dir_.Sub("f"), region_);
  }
  void ExpectGood() { ExpectWhole(dir_.Sub("f"), region_); }
  // But for the one that an ordinary user's limit of locked memory brings about.
  std::vector<std::string> OtherNotes() const {
    std::vector<std::string> others = notes_;
    std::erase_if(others, [](const std::string& note) {
      return note.find("LimitMEMLOCK") != std::string::npos;
    });
    return others;
  }

  testing::TempDir dir_;
  Region region_;
  std::vector<std::string> notes_;
};

TEST_F(UringTest, WritesEveryByteWithRegisteredMemory) {
  ASSERT_TRUE(Write(Quiet(&notes_)).ok());
  ExpectGood();
}

TEST_F(UringTest, WritesEveryByteWithoutRegisteredMemory) {
  UringOptions options = Quiet(&notes_);
  options.register_memory = false;
  ASSERT_TRUE(Write(options).ok());
  ExpectGood();
}

TEST_F(UringTest, OneWriteInFlightIsEnough) {
  UringOptions options = Quiet(&notes_);
  options.writes_in_flight = 1;
  ASSERT_TRUE(Write(options).ok());
  ExpectGood();
}

TEST_F(UringTest, FallsBackWhenTheRingIsRefused) {
  for (const int error : {EPERM, ENOSYS, ENOMEM, EINVAL}) {
    ::unlink(dir_.Sub("f").c_str());
    notes_.clear();
    UringOptions options = Quiet(&notes_);
    options.calls.init = [error](unsigned, io_uring*, io_uring_params*) { return -error; };
    const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
    ASSERT_TRUE(WriteWhole(fs.get(), dir_.Sub("f"), region_).ok());
    ASSERT_TRUE(WriteWhole(fs.get(), dir_.Sub("g"), region_).ok());
    ExpectGood();
    ASSERT_EQ(notes_.size(), 1u) << "it is said once";
    EXPECT_NE(notes_[0].find("io_uring is not available"), std::string::npos) << notes_[0];
    ::unlink(dir_.Sub("g").c_str());
  }
}

TEST_F(UringTest, GoesOnWithoutFlagsThatAnOldKernelDoesNotKnow) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  int calls = 0;
  options.calls.init = [&calls](unsigned entries, io_uring* ring, io_uring_params* params) {
    ++calls;
    return params->flags != 0 ? -EINVAL : ::io_uring_queue_init_params(entries, ring, params);
  };
  ASSERT_TRUE(Write(options).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(OtherNotes(), ::testing::IsEmpty());
  ExpectGood();
}

TEST_F(UringTest, GoesOnWhenMemoryCannotBeRegistered) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  options.calls.register_buffers = [](io_uring*, const iovec*, unsigned) { return -ENOMEM; };
  ASSERT_TRUE(Write(options).ok());
  ExpectGood();
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("LimitMEMLOCK"), std::string::npos) << notes_[0];
}

TEST_F(UringTest, GoesThroughThePageCacheWhenDirectIsRefused) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  options.calls.set_direct = [](int) { return -EINVAL; };
  ASSERT_TRUE(Write(options).ok());
  ExpectGood();
  EXPECT_THAT(OtherNotes(), ::testing::ElementsAre(::testing::HasSubstr("O_DIRECT")));
}

TEST_F(UringTest, WorksOnTmpfs) {
  testing::TempDir shm("/dev/shm");
  if (shm.path().empty()) GTEST_SKIP() << "no /dev/shm here";
  const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), Quiet(&notes_));
  ASSERT_TRUE(WriteWhole(fs.get(), shm.Sub("f"), region_).ok());
  ExpectWhole(shm.Sub("f"), region_);
}

TEST_F(UringTest, ShortWritesAndInterruptionsAreContinued) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  int seen = 0;
  options.calls.completion = [&seen](int result) {
    switch (++seen) {
      case 1:
        return -EINTR;
      case 2:
        return -EAGAIN;
      case 3:
        return result / 2 + 17;  // not on a page
      case 4:
        return 0;
      default:
        return result;
    }
  };
  ASSERT_TRUE(Write(options).ok());
  EXPECT_GT(seen, 8);
  ExpectGood();
}

TEST_F(UringTest, AFailedCompletionPoisonsTheFile) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  for (const int error : {EIO, ENOSPC}) {
    ::unlink(dir_.Sub("f").c_str());
    UringOptions options = Quiet(&notes_);
    int seen = 0;
    options.calls.completion = [&seen, error](int result) { return ++seen == 2 ? -error : result; };
    const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
    auto file = fs->CreateBulk(dir_.Sub("f"), {region_.region()});
    ASSERT_TRUE(file.ok());
    const absl::Status written = (*file)->WriteAt(0, region_.data(), kRegionBytes);
    const absl::Status synced = (*file)->Sync();
    EXPECT_FALSE(synced.ok()) << "a write failed: " << written;
    EXPECT_NE(synced.message().find(dir_.Sub("f")), absl::string_view::npos) << synced;
    EXPECT_FALSE((*file)->WriteAt(0, region_.data(), kPage).ok());
    EXPECT_FALSE((*file)->Sync().ok());
    EXPECT_FALSE((*file)->Close().ok());
  }
}

TEST_F(UringTest, NoProgressForeverIsAnError) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  options.calls.completion = [](int) { return 0; };
  const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
  auto file = fs->CreateBulk(dir_.Sub("f"), {region_.region()});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->WriteAt(0, region_.data(), kPage).ok());
  const absl::Status status = (*file)->Sync();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(UringTest, AFailedSyncPoisonsTheFile) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  int syncs = 0;
  options.calls.sync = [&syncs](int) { return ++syncs == 1 ? -EIO : 0; };
  const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
  auto file = fs->CreateBulk(dir_.Sub("f"), {region_.region()});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->WriteAt(0, region_.data(), kPage).ok());
  EXPECT_FALSE((*file)->Sync().ok());
  EXPECT_FALSE((*file)->Sync().ok()) << "the second sync would succeed and mean nothing";
  EXPECT_EQ(syncs, 1);
}

TEST_F(UringTest, TheDestructorWaitsForTheKernel) {
  if (!RingAvailable()) GTEST_SKIP() << "no io_uring here";
  UringOptions options = Quiet(&notes_);
  int completed = 0;
  options.calls.completion = [&completed](int result) {
    ++completed;
    return result;
  };
  const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), options);
  {
    auto file = fs->CreateBulk(dir_.Sub("f"), {region_.region()});
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(0, region_.data(), kRegionBytes).ok());
  }
  EXPECT_EQ(completed, 3) << "two blocks of 4 MiB and one of 1 MiB";
}

TEST_F(UringTest, WritesWhatIsNotAligned) {
  const std::unique_ptr<FileSystem> fs = NewUringFileSystem(PosixFileSystem(), Quiet(&notes_));
  auto file = fs->CreateBulk(dir_.Sub("f"), {region_.region()});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append(region_.data(), kPage).ok());
  ASSERT_TRUE((*file)->Append(region_.data() + kPage, 100).ok());
  ASSERT_TRUE((*file)->Append(region_.data() + kPage + 100, kPage).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(*PosixFileSystem()->ReadFile(dir_.Sub("f")),
            std::string(region_.data(), 2 * kPage + 100));
}

TEST_F(UringTest, RefusesAnExistingFile) {
  ASSERT_TRUE(PosixFileSystem()->WriteFileDurably(dir_.Sub("f"), "x").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Write(Quiet(&notes_))));
}

}  // namespace
}  // namespace holdfast
