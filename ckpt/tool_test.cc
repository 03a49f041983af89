// SPDX-License-Identifier: Apache-2.0
#include "ckpt/tool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/testing/fault_file_system.h"
#include "ckpt/read_boxes.h"
#include "ckpt/testing/test_world.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int exit = -1;
  std::string out, err;
};

class ToolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(&fs_, "/s", {});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(
        testing::SaveAll(store_.get(), {JobId{7}, 1, 10}, 1, testing::TestModel(), {2, 1}).ok());
    ASSERT_TRUE(
        testing::SaveAll(store_.get(), {JobId{7}, 2, 20}, 2, testing::TestModel(), {2, 1}).ok());
    ASSERT_TRUE(
        testing::SaveAll(store_.get(), {JobId{7}, 3, 20}, 3, testing::TestModel(), {1, 2}).ok());
    ASSERT_TRUE(
        testing::SaveRank(store_.get(), {JobId{8}, 1, 5}, 4, testing::TestModel(), {2, 1}, 0).ok());
  }
  Ran Run(std::vector<std::string> arguments, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream out, err;
    Ran ran;
    ran.exit = RunTool(&fs_, arguments, in, out, err);
    ran.out = out.str();
    ran.err = err.str();
    return ran;
  }
  holdfast::testing::FaultFileSystem fs_;
  std::unique_ptr<Store> store_;
};

TEST_F(ToolTest, ListsCommittedAndPrepared) {
  const Ran ran = Run({"ls", "/s"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("j-7@10.1"));
  EXPECT_THAT(ran.out, HasSubstr("prepared 1"));
  const Ran json = Run({"ls", "--store", "/s", "--json"});
  std::istringstream lines(json.out);
  std::string line;
  std::vector<std::string> seen;
  while (std::getline(lines, line)) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(row.is_object()) << line;
    seen.push_back(row["job"].get<std::string>() + "@" + std::to_string(row["step"].get<int>()) +
                   "." + std::to_string(row["attempt"].get<int>()) +
                   (row["committed"].get<bool>() ? " c" : " p"));
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("j-7@10.1 c", "j-7@20.2 c", "j-7@20.3 c", "j-8@5.1 p"));
}

TEST_F(ToolTest, ShowsTheNewestAttemptOfAStep) {
  const Ran ran = Run({"show", "/s", "j-7@20", "--json"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out, nullptr, false);
  EXPECT_EQ(json["attempt"], 3);
  EXPECT_EQ(json["tensors"].size(), testing::TestModel().size());
  EXPECT_THAT(Run({"show", "/s", "j-7@20.2"}).out, HasSubstr("checkpoint j-7@20.2"));
}

TEST_F(ToolTest, DigestIsThatOfTheStore) {
  const Ran ran = Run({"digest", "--store", "/s", "j-7@10"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.out, DigestHex(*store_->StateDigest({JobId{7}, 1, 10})) + "\n");
}

TEST_F(ToolTest, VerifyNamesTheFileAndTheOffset) {
  EXPECT_EQ(Run({"verify", "/s"}).exit, 0);
  EXPECT_EQ(Run({"verify", "/s", "j-7@10.1"}).out, "j-7@10.1 ok\n");
  ASSERT_TRUE(fs_.FlipByte("/s/jobs/j-7/20.2/rank-00001.pack", 4096 + 5, 4));
  const Ran ran = Run({"verify", "/s"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_THAT(ran.err, HasSubstr("/s/jobs/j-7/20.2/rank-00001.pack"));
  EXPECT_THAT(ran.err, HasSubstr("offset 4096"));
  EXPECT_THAT(ran.out, HasSubstr("j-7@20.3 ok")) << "the others are verified all the same";
  EXPECT_EQ(Run({"digest", "/s", "j-7@20.2"}).exit, 1);
}

TEST_F(ToolTest, ReadGivesVerifiedBytesOfTheBoxesAskedForInOrder) {
  const std::string whole = R"({"tensor":"odd bytes"})"
                            "\n";
  const std::string part = R"({"tensor":"odd bytes","offset":[2000],"size":[99]})"
                           "\n";
  const Ran all = Run({"read", "/s", "j-7@20"}, whole);
  ASSERT_EQ(all.exit, 0) << all.err;
  ASSERT_EQ(all.out.size(), 4099u);
  const Ran two = Run({"read", "/s", "j-7@20"}, part + whole);
  ASSERT_EQ(two.exit, 0) << two.err;
  EXPECT_EQ(two.out, all.out.substr(2000, 99) + all.out);
  // The same bytes, whatever layout wrote them, and none for an empty tensor.
  EXPECT_EQ(Run({"read", "/s", "j-7@20.3"}, R"({"tensor":"scale"})").out.size(), 8u);
  EXPECT_EQ(Run({"read", "/s", "j-7@20.3"}, R"({"tensor":"unused"})").out, "");
  EXPECT_EQ(Run({"read", "/s", "j-7@20"}, "").exit, 0);
}

TEST_F(ToolTest, ReadNamesTheLineThatIsWrong) {
  const auto expect = [&](const std::string& line, int exit, const std::string& part) {
    const Ran ran = Run({"read", "/s", "j-7@20"}, R"({"tensor":"scale"})"
                                                  "\n" +
                                                      line + "\n");
    EXPECT_EQ(ran.exit, exit) << line;
    EXPECT_EQ(ran.out, "") << "nothing is written before all requests are understood";
    EXPECT_THAT(ran.err, HasSubstr("line 2"));
    EXPECT_THAT(ran.err, HasSubstr(part));
  };
  expect("{", 2, "not an object");
  expect(R"({"tensor":7})", 2, "not an object");
  expect(R"({"tensor":"none"})", 3, "no tensor 'none'");
  expect(R"({"tensor":"odd bytes","offset":[0]})", 2, "offset and size");
  expect(R"({"tensor":"odd bytes","offset":[-1],"size":[2]})", 2, "offset and size");
  expect(R"({"tensor":"odd bytes","offset":[4000],"size":[100]})", 2, "leaves tensor");
  expect(R"({"tensor":"odd bytes","offset":[0,0],"size":[1,1]})", 2, "leaves tensor");
  expect(std::string(kBoxRequestLineBytesMax + 1, ' '), 2, "longer than");
}

TEST_F(ToolTest, ReadStopsAtTheFirstDamagedBox) {
  ASSERT_TRUE(fs_.FlipByte("/s/jobs/j-7/10.1/rank-00000.pack", 5000, 1));
  const Ran ran = Run({"read", "/s", "j-7@10"}, R"({"tensor":"layers.0.weight"})");
  EXPECT_EQ(ran.exit, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("rank-00000.pack"));
}

TEST_F(ToolTest, AFlippedCommitRecordIsAProblemAndNotAbsence) {
  ASSERT_TRUE(fs_.FlipByte("/s/jobs/j-7/10.1/COMMIT", 200, 1));
  for (const char* verb : {"show", "verify", "digest"}) {
    const Ran ran = Run({verb, "/s", "j-7@10"});
    EXPECT_EQ(ran.exit, 1) << verb;
    EXPECT_THAT(ran.err, HasSubstr("/s/jobs/j-7/10.1/COMMIT"));
  }
  EXPECT_THAT(Run({"ls", "/s"}).out, HasSubstr("damaged"));
  EXPECT_EQ(Run({"verify", "/s"}).exit, 1);
}

TEST_F(ToolTest, ExitCodes) {
  EXPECT_EQ(Run({"show", "/s", "j-7@11"}).exit, 3);
  EXPECT_EQ(Run({"show", "/s", "j-8@5"}).exit, 3) << "prepared is not committed";
  EXPECT_EQ(Run({"verify", "/s", "j-7@20.9"}).exit, 3);
  EXPECT_EQ(Run({"ls", "/nowhere"}).exit, 3);
  EXPECT_EQ(Run({}).exit, 2);
  EXPECT_EQ(Run({"ls"}).exit, 2);
  EXPECT_EQ(Run({"frobnicate", "/s"}).exit, 2);
  EXPECT_EQ(Run({"show", "/s"}).exit, 2);
  EXPECT_EQ(Run({"show", "/s", "seven"}).exit, 2);
  EXPECT_EQ(Run({"ls", "/s", "more"}).exit, 2);
  EXPECT_EQ(Run({"--help"}).exit, 0);
  ASSERT_TRUE(fs_.FlipByte("/s/FORMAT", 0, 1));
  EXPECT_EQ(Run({"ls", "/s"}).exit, 1);
}

}  // namespace
}  // namespace holdfast::ckpt
