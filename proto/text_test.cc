// SPDX-License-Identifier: Apache-2.0
#include "proto/text.h"

#include <gtest/gtest.h>

namespace holdfast::proto {
namespace {

TEST(Duration, AcceptsUnitsAndSums) {
  const struct {
    const char* text;
    int64_t unit;
    int64_t ms;
  } cases[] = {{"90s", 1, 90'000},       {"10m", 1, 600'000},  {"2h", 1, 7'200'000},
               {"2h30m", 1, 9'000'000},  {"500ms", 1000, 500}, {"1d", 1, 86'400'000},
               {"30", 1000, 30'000},     {"30", 1, 30},        {"0s", 1, 0},
               {"1m30s500ms", 1, 90'500}};
  for (const auto& c : cases) {
    const auto got = ParseDurationMs(c.text, c.unit);
    ASSERT_TRUE(got.ok()) << c.text;
    EXPECT_EQ(*got, c.ms) << c.text;
  }
}

TEST(Duration, RefusesTheRest) {
  for (const char* text : {"", "s", "-1s", "1.5h", "10 m", "10x", "2h30", "h2", "1s ",
                           "9223372036854775807d", "99999999999999999999"}) {
    EXPECT_FALSE(ParseDurationMs(text, 1).ok()) << text;
  }
}

TEST(Duration, FormatIsReadBack) {
  for (const int64_t ms :
       {0L, 1L, 999L, 1000L, 1500L, 90'000L, 3'600'000L, 86'400'000L + 60'000L}) {
    const auto back = ParseDurationMs(FormatDurationMs(ms), 1);
    ASSERT_TRUE(back.ok()) << FormatDurationMs(ms);
    EXPECT_EQ(*back, ms);
  }
  EXPECT_EQ(FormatDurationMs(5'400'000), "1h30m");
}

TEST(Bytes, AcceptsBinaryUnits) {
  EXPECT_EQ(*ParseBytes("67108864"), 67108864u);
  EXPECT_EQ(*ParseBytes("64MiB"), 67108864u);
  EXPECT_EQ(*ParseBytes("64Mi"), 67108864u);
  EXPECT_EQ(*ParseBytes("10k"), 10240u);
  EXPECT_EQ(*ParseBytes("2GB"), 2147483648u);
  for (const char* text : {"", "M", "-1", "1.5G", "1 G", "5XiB", "5Mb", "99999999999T"})
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  EXPECT_EQ(FormatBytes(67108864), "64MiB");
  EXPECT_EQ(FormatBytes(1536), "1.5KiB");
  EXPECT_EQ(FormatBytes(0), "0B");
}

TEST(Command, SplitsLikeAShellWithoutExpansion) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(*SplitCommand("python train.py --lr 3e-4"),
            (Words{"python", "train.py", "--lr", "3e-4"}));
  EXPECT_EQ(*SplitCommand("a 'b  c' \"d \\\" e\" f\\ g"), (Words{"a", "b  c", "d \" e", "f g"}));
  EXPECT_EQ(*SplitCommand("echo $HOME `x` *"), (Words{"echo", "$HOME", "`x`", "*"}));
  EXPECT_EQ(*SplitCommand("a '' b"), (Words{"a", "", "b"}));
  EXPECT_EQ(*SplitCommand("pre'fix'\"ed\""), (Words{"prefixed"}));
  EXPECT_EQ(*SplitCommand("  "), Words{});
  EXPECT_EQ(SplitCommand("a 'b").status().message(), "the quote ' at character 3 is not closed");
  EXPECT_EQ(SplitCommand("a \\").status().message(), "ends with a lone backslash");
}

TEST(CheckpointName, ReadsBothForms) {
  EXPECT_EQ(*ParseCheckpointName("j-42@100"), (CheckpointId{JobId{42}, 0, 100}));
  EXPECT_EQ(*ParseCheckpointName("j-42@100.3"), (CheckpointId{JobId{42}, 3, 100}));
  for (const char* text : {"", "j-42", "42@100", "j-42@", "j-42@x", "j-42@100.", "j-42@100.0",
                           "j-42@100.3x", "j-42@-1", "j-0@1"}) {
    EXPECT_FALSE(ParseCheckpointName(text).ok()) << text;
  }
}

TEST(Nearest, FindsWhatWasMeantAndNothingElse) {
  const std::vector<std::string> known = {"nodes", "gpus_per_node", "name", "command"};
  EXPECT_EQ(NearestName("node", known), "nodes");
  EXPECT_EQ(NearestName("comand", known), "command");
  EXPECT_EQ(NearestName("gpus", known), "gpus_per_node");
  EXPECT_EQ(NearestName("elephants", known), "");
}

TEST(Utf8, RefusesOverlongSurrogatesAndCutSequences) {
  EXPECT_TRUE(IsUtf8("plain"));
  EXPECT_TRUE(IsUtf8("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"));
  for (const char* text :
       {"\xff", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << testing::PrintToString(text);
  }
}

TEST(EnvironmentName, FollowsTheShell) {
  EXPECT_TRUE(IsEnvironmentName("OMP_NUM_THREADS"));
  EXPECT_TRUE(IsEnvironmentName("_x1"));
  for (const char* text : {"", "1A", "A-B", "A=B", "\xc3\xa4"})
    EXPECT_FALSE(IsEnvironmentName(text)) << text;
}

TEST(Utf8, ACutNeverLeavesHalfACharacter) {
  const std::string text = "a\u00e9\u4f60b";  // 1, 2, 3 and 1 bytes
  for (size_t max = 0; max <= text.size() + 1; ++max) {
    const std::string head = HeadUtf8(text, max), tail = TailUtf8(text, max);
    EXPECT_TRUE(IsUtf8(head) && IsUtf8(tail)) << max;
    EXPECT_LE(head.size(), max);
    EXPECT_LE(tail.size(), max);
    EXPECT_EQ(text.substr(0, head.size()), head);
    EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
  }
  EXPECT_EQ(HeadUtf8(text, 5), "a\u00e9");
  EXPECT_EQ(TailUtf8(text, 3), "b");
  EXPECT_EQ(HeadUtf8(text, 100), text);
  EXPECT_EQ(TailUtf8(text, 4), "\u4f60b");
}

}  // namespace
}  // namespace holdfast::proto
