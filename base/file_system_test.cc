// SPDX-License-Identifier: Apache-2.0
// The POSIX side of the seam, on a real directory.
#include "base/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/temp_dir.h"

namespace holdfast {
namespace {

class PosixFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(dir_.path().empty()); }
  FileSystem& fs() { return *PosixFileSystem(); }
  testing::TempDir dir_;
};

TEST_F(PosixFileSystemTest, AppendWriteAtAndReadBack) {
  const std::string path = dir_.Sub("f");
  auto file = fs().CreateExclusive(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("hello", 5).ok());
  ASSERT_TRUE((*file)->WriteAt(1, "E", 1).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  auto reader = fs().OpenForRead(path);
  ASSERT_TRUE(reader.ok());
  char buffer[16];
  EXPECT_EQ(*(*reader)->ReadAt(1, buffer, sizeof buffer), 4u)
      << "a short read at the end is not an error";
  EXPECT_EQ(std::string(buffer, 4), "Ello");
  EXPECT_EQ(*(*reader)->ReadAt(100, buffer, sizeof buffer), 0u);
  EXPECT_EQ(*(*reader)->Size(), 5u);
}

TEST_F(PosixFileSystemTest, CreateExclusiveRefusesWhatExists) {
  ASSERT_TRUE(fs().WriteFileDurably(dir_.Sub("f"), "x").ok());
  const absl::Status status = fs().CreateExclusive(dir_.Sub("f")).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_NE(status.message().find(dir_.Sub("f")), absl::string_view::npos)
      << "the error must name the file";
}

TEST_F(PosixFileSystemTest, DescriptorsAreClosedOnExec) {
  auto file = fs().CreateExclusive(dir_.Sub("f"));
  ASSERT_TRUE(file.ok());
  int cloexec = 0, seen = 0;
  for (int fd = 3; fd < 64; ++fd) {
    char target[512];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t n = ::readlink(link.c_str(), target, sizeof target);
    if (n <= 0 || std::string(target, static_cast<size_t>(n)) != dir_.Sub("f")) continue;
    ++seen;
    cloexec += (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
  }
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(cloexec, 1);
}

TEST_F(PosixFileSystemTest, OpenForAppendGoesOnAtTheEnd) {
  for (const char* text : {"one\n", "two\n"}) {
    auto file = fs().OpenForAppend(dir_.Sub("log"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append(text, 4).ok());
  }
  EXPECT_EQ(*fs().ReadFile(dir_.Sub("log")), "one\ntwo\n");
}

TEST_F(PosixFileSystemTest, AFileIsPoisonedByAFailedWrite) {
  const std::string path = dir_.Sub("f");
  auto file = fs().CreateExclusive(path);
  ASSERT_TRUE(file.ok());
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string content(100, 'x');
  EXPECT_FALSE((*file)->Append(content.data(), content.size()).ok()) << "a short write, then EFBIG";
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE((*file)->Append("y", 1).ok());
  EXPECT_FALSE((*file)->Sync().ok());
}

TEST_F(PosixFileSystemTest, WriteFileDurablyReplacesAndLeavesNoTemporaryName) {
  ASSERT_TRUE(fs().WriteFileDurably(dir_.Sub("f"), "old").ok());
  ASSERT_TRUE(fs().WriteFileDurably(dir_.Sub("f"), "new").ok());
  EXPECT_EQ(*fs().ReadFile(dir_.Sub("f")), "new");
  EXPECT_EQ(*fs().List(dir_.path()), std::vector<std::string>{"f"});
}

TEST_F(PosixFileSystemTest, WriteFileDurablyIntoAMissingDirectoryIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(fs().WriteFileDurably(dir_.Sub("no/f"), "x")));
}

TEST_F(PosixFileSystemTest, ManyWritersOfOneFileLeaveOneWholeContent) {
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([this, c] {
      for (int i = 0; i < 20; ++i)
        EXPECT_TRUE(fs().WriteFileDurably(dir_.Sub("f"), std::string(1000, c)).ok());
    });
  }
  for (std::thread& t : writers) t.join();
  const std::string content = *fs().ReadFile(dir_.Sub("f"));
  ASSERT_EQ(content.size(), 1000u);
  EXPECT_EQ(content, std::string(1000, content[0]));
}

TEST_F(PosixFileSystemTest, ReadFileRefusesWhatIsNotSmall) {
  auto file = fs().CreateExclusive(dir_.Sub("big"));
  ASSERT_TRUE((*file)->WriteAt(kSmallFileBytesMax, "x", 1).ok());  // sparse
  EXPECT_TRUE(absl::IsResourceExhausted(fs().ReadFile(dir_.Sub("big")).status()));
}

TEST_F(PosixFileSystemTest, DirectoriesAreMadeListedAndRemoved) {
  ASSERT_TRUE(fs().MakeDirs(dir_.Sub("a/b/c")).ok());
  ASSERT_TRUE(fs().MakeDirs(dir_.Sub("a/b/c")).ok());
  EXPECT_TRUE(*fs().Exists(dir_.Sub("a/b/c")));
  ASSERT_TRUE(fs().WriteFileDurably(dir_.Sub("a/z"), "").ok());
  EXPECT_EQ(*fs().List(dir_.Sub("a")), (std::vector<std::string>{"b", "z"}));
  EXPECT_FALSE(fs().RemoveDir(dir_.Sub("a/b")).ok()) << "not empty";
  EXPECT_TRUE(fs().RemoveDir(dir_.Sub("a/b/c")).ok());
  EXPECT_FALSE(*fs().Exists(dir_.Sub("a/b/c")));
  EXPECT_TRUE(absl::IsInvalidArgument(fs().MakeDirs(dir_.Sub("a/z/y"))));
  EXPECT_TRUE(absl::IsInvalidArgument(fs().OpenForRead(dir_.Sub("a")).status()));
  EXPECT_TRUE(absl::IsNotFound(fs().List(dir_.Sub("nothing")).status()));
  EXPECT_TRUE(absl::IsNotFound(fs().SyncDir(dir_.Sub("nothing"))));
}

TEST_F(PosixFileSystemTest, PreallocateTakesRoomAndFreeBytesAreReal) {
  auto file = fs().CreateExclusive(dir_.Sub("f"));
  ASSERT_TRUE((*file)->Preallocate(1 << 20).ok());
  EXPECT_GT(*fs().FreeBytes(dir_.path()), 0u);
  EXPECT_FALSE((*file)->Preallocate(1ull << 62).ok()) << "nobody has that much room";
}

TEST(DirNameTest, IsWhereANameIsWritten) {
  const std::pair<const char*, const char*> cases[] = {
      {"a", "."}, {"a/", "."}, {"a/b", "a"},   {"a/b//", "a"}, {"/a", "/"},
      {"/", "/"}, {"//", "/"}, {"/a/b", "/a"}, {"", "."},
  };
  for (const auto& [path, parent] : cases) EXPECT_EQ(DirName(path), parent) << path;
}

TEST(JoinPathTest, PutsExactlyOneSlash) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
}

}  // namespace
}  // namespace holdfast
