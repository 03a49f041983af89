// SPDX-License-Identifier: Apache-2.0
// Token files, loader, tokenizer and the data builder, with bad inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/testing/fault_file_system.h"
#include "base/testing/temp_dir.h"
#include "worker/data/builder.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/loader.h"
#include "worker/philox.h"

namespace holdfast::worker {
namespace {

using testing::TempDir;

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Build(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents,
           TokenType type) {
  auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, type);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& document : documents) ASSERT_TRUE((*writer)->AddDocument(document).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

TEST(IndexedDataset, WritesTheBytesOfMegatronsFormat) {
  const TempDir dir;
  Build(dir.Sub("d"), {{1, 2, 300}, {65535}}, TokenType::kU16);
  EXPECT_EQ(ReadText(dir.Sub("d.bin")), std::string("\x01\0\x02\0\x2c\x01\xff\xff", 8));
  const std::string golden(
      "MMIDIDX\0\0"         // magic
      "\x01\0\0\0\0\0\0\0"  // version
      "\x08"                // u16
      "\x02\0\0\0\0\0\0\0"  // sequences
      "\x03\0\0\0\0\0\0\0"  // document entries
      "\x03\0\0\0"
      "\x01\0\0\0"  // lengths
      "\0\0\0\0\0\0\0\0"
      "\x06\0\0\0\0\0\0\0"  // byte pointers
      "\0\0\0\0\0\0\0\0"
      "\x01\0\0\0\0\0\0\0"
      "\x02\0\0\0\0\0\0\0",  // document entries
      34 + 8 + 16 + 24);
  EXPECT_EQ(ReadText(dir.Sub("d.idx")), golden);
}

TEST(IndexedDataset, ReadsBackEveryElementType) {
  for (const TokenType type : {TokenType::kU8, TokenType::kU16, TokenType::kI32}) {
    const TempDir dir;
    Build(dir.Sub("d"), {{7, 0, 255}, {1, 2}}, type);
    const auto data = IndexedDataset::Open(PosixFileSystem(), dir.Sub("d"));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->tokens(), 5u);
    EXPECT_EQ((*data)->documents(), 2u);
    std::vector<int64_t> tokens(4);
    ASSERT_TRUE((*data)->Read(1, 4, tokens.data()).ok());
    EXPECT_EQ(tokens, (std::vector<int64_t>{0, 255, 1, 2}));
    EXPECT_FALSE((*data)->Read(2, 4, tokens.data()).ok());
  }
  EXPECT_EQ(TokenTypeFor(65'499), TokenType::kU16);
  EXPECT_EQ(TokenTypeFor(65'500), TokenType::kI32);
}

struct Damage {
  const char* name;
  const char* file;  // suffix of the file to change
  void (*change)(std::string* bytes);
  const char* says;  // part of the one error
};

class Damaged : public ::testing::TestWithParam<Damage> {};

TEST_P(Damaged, IsOneClearErrorNamingTheFile) {
  const TempDir dir;
  Build(dir.Sub("d"), {{1, 2, 3}, {4, 5}}, TokenType::kU16);
  const std::string path = dir.Sub("d") + GetParam().file;
  std::string bytes = ReadText(path);
  GetParam().change(&bytes);
  WriteText(path, bytes);
  const absl::Status status = IndexedDataset::Open(PosixFileSystem(), dir.Sub("d")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(GetParam().says), absl::string_view::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    Files, Damaged,
    ::testing::Values(
        Damage{"BinCut", ".bin", [](std::string* b) { b->pop_back(); }, "cut short"},
        Damage{"BinLonger", ".bin", [](std::string* b) { b->push_back(1); },
               "do not belong together"},
        Damage{"IdxCut", ".idx", [](std::string* b) { b->resize(b->size() - 9); }, "cut short"},
        Damage{"IdxEmpty", ".idx", [](std::string* b) { b->clear(); }, "not an .idx"},
        Damage{"IdxMagic", ".idx", [](std::string* b) { (*b)[0] = 'X'; }, "not an .idx"},
        Damage{"IdxVersion", ".idx", [](std::string* b) { (*b)[9] = 2; }, "version 2"},
        Damage{"IdxType", ".idx", [](std::string* b) { (*b)[17] = 6; }, "element type 6"},
        Damage{"IdxCount", ".idx", [](std::string* b) { (*b)[18] = 0; }, "cut short"},
        Damage{"IdxHugeCount", ".idx", [](std::string* b) { (*b)[25] = 0x7f; }, "cut short"},
        Damage{"IdxLength", ".idx", [](std::string* b) { (*b)[37] = '\x80'; }, "length"},
        Damage{"IdxPointer", ".idx", [](std::string* b) { (*b)[50] = 4; }, "begins at byte"},
        Damage{"IdxDocument", ".idx", [](std::string* b) { (*b)[66] = 9; }, "document entry 1"}),
    [](const auto& damage) { return damage.param.name; });

TEST(IndexedDataset, AMissingFileIsNamed) {
  const TempDir dir;
  const absl::Status status = IndexedDataset::Open(PosixFileSystem(), dir.Sub("none")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("none.bin"), absl::string_view::npos) << status;
}

TEST(IndexedDataset, AnUnfinishedBuildLeavesNothing) {
  const TempDir dir;
  {
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), dir.Sub("d"), TokenType::kU8);
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE((*writer)->AddDocument({1, 256}).ok());
    EXPECT_FALSE((*writer)->AddDocument({}).ok());
  }
  EXPECT_TRUE(PosixFileSystem()->List(dir.path())->empty());
}

// Whatever the moment of a power cut: the old set, the new set, or no .idx; never parts of both.
TEST(IndexedDataset, AReplacementThatDiesMixesNothing) {
  using testing::Fault;
  const auto write = [](FileSystem* fs, int32_t token, const std::string& model) {
    auto writer = IndexedDatasetWriter::Create(fs, "/d", TokenType::kU8);
    return writer.ok() && (*writer)->AddDocument({token, token, token}).ok() &&
           (*writer)->Finish(model).ok();
  };
  bool finished = false;
  std::set<std::string> seen;
  for (uint64_t at = 1; !finished; ++at) {
    ASSERT_LT(at, 100u);
    for (const testing::Loss loss :
         {testing::Loss::kAll, testing::Loss::kKeepNames, testing::Loss::kNothing}) {
      SCOPED_TRACE(::testing::Message() << "operation " << at << ", loss " << int(loss));
      testing::FaultFileSystem fs;
      ASSERT_TRUE(write(&fs, 1, "old"));
      fs.Plan(at, Fault::kCrashAfter);
      const bool written = write(&fs, 2, "new");
      finished = fs.Operations() < at;
      fs.Reboot(loss, at);
      const auto data = IndexedDataset::Open(&fs, "/d");
      if (!data.ok()) {
        EXPECT_FALSE(written);
        EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound) << data.status();
        seen.insert("none");
        continue;
      }
      int64_t token = 0;
      ASSERT_TRUE((*data)->Read(1, 1, &token).ok());
      const std::string model = fs.ReadFile("/d.model").value_or("?");
      EXPECT_EQ(model, token == 1 ? "old" : "new");
      seen.insert(model);
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"new", "none", "old"}));
}

TEST(Entropy, OfKnownDistributions) {
  EXPECT_NEAR(UnigramEntropy({1, 1, 1, 1}), std::log(4.0), 1e-12);
  EXPECT_EQ(UnigramEntropy({0, 5}), 0);
  EXPECT_NEAR(UnigramEntropy({3, 0, 1}), 0.75 * std::log(4.0 / 3) + 0.25 * std::log(4.0), 1e-12);
}

TEST(Permutation, IsOneToOneAndDependsOnTheKey) {
  for (const uint64_t n : {1ull, 2ull, 7ull, 64ull, 1000ull}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) seen.insert(PermutedIndex(11, n, i));
    EXPECT_EQ(seen.size(), n);
    EXPECT_LT(*seen.rbegin(), n);
  }
  int moved = 0;
  for (uint64_t i = 0; i < 1000; ++i)
    moved += PermutedIndex(11, 1000, i) != PermutedIndex(12, 1000, i);
  EXPECT_GT(moved, 900);
}

TEST(Philox, MatchesThePublishedVectors) {  // Random123's kat_vectors, philox4x32 with 10 rounds
  EXPECT_EQ(Philox4x32(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~0ull, ~0ull, ~0ull),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, NormalNumbersHaveMeanZeroAndVarianceOne) {
  NormalStream stream(PhiloxKey(1, "x"));
  double sum = 0, squares = 0;
  const int n = 40'000;
  for (int i = 0; i < n; ++i) sum += stream.At(i), squares += std::pow(stream.At(i), 2);
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.03);
  NormalStream again(PhiloxKey(1, "x"));
  EXPECT_EQ(again.At(17), stream.At(17));
  EXPECT_NE(NormalStream(PhiloxKey(1, "y")).At(17), stream.At(17));
}

std::vector<int64_t> Sample(const SampleSource& source, uint64_t k, int64_t seq_len) {
  std::vector<int64_t> out(seq_len + 1);
  EXPECT_TRUE(source.Read(k, out.data()).ok());
  return out;
}

TEST(Loader, AnEpochReadsEveryTokenOnceInAnOrderOfItsOwn) {
  const TempDir dir;
  std::vector<int32_t> document;
  for (int32_t i = 0; i < 41; ++i) document.push_back(i);
  Build(dir.Sub("d"), {document}, TokenType::kU8);
  const auto source = OpenTokens(PosixFileSystem(), dir.Sub("d"), 5, 4, 256);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<int64_t> firsts[2];
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (uint64_t k = 0; k < 10; ++k) {
      const auto sample = Sample(**source, epoch * 10 + k, 4);
      for (int64_t i = 1; i <= 4; ++i)
        EXPECT_EQ(sample[i], sample[0] + i);  // label overlap included
      firsts[epoch].push_back(sample[0]);
    }
    EXPECT_EQ(std::set<int64_t>(firsts[epoch].begin(), firsts[epoch].end()).size(), 10u);
  }
  EXPECT_NE(firsts[0], firsts[1]);
  const auto again = OpenTokens(PosixFileSystem(), dir.Sub("d"), 5, 4, 256);
  EXPECT_EQ(Sample(**again, 13, 4), Sample(**source, 13, 4));  // no state: any sample, any time
}

TEST(Loader, TheSamplesOfAStepDoNotDependOnTheLayout) {
  const auto samples = [](int64_t dp, int64_t accumulate, int64_t micro_batch, uint64_t consumed) {
    std::multiset<uint64_t> all;
    for (int64_t d = 0; d < dp; ++d) {
      for (int64_t m = 0; m < accumulate; ++m) {
        for (int64_t i = 0; i < micro_batch; ++i)
          all.insert(FirstSample({consumed, dp, d, micro_batch, m}) + i);
      }
    }
    return all;
  };
  const std::multiset<uint64_t> expected = {24, 25, 26, 27, 28, 29, 30, 31};
  EXPECT_EQ(samples(1, 4, 2, 24), expected);
  EXPECT_EQ(samples(2, 2, 2, 24), expected);
  EXPECT_EQ(samples(4, 1, 2, 24), expected);
  EXPECT_EQ(samples(2, 1, 4, 24), expected);
}

TEST(Loader, TooLittleTextAndTokensOutsideTheVocabularyAreErrors) {
  const TempDir dir;
  Build(dir.Sub("d"), {{1, 2, 9, 3}}, TokenType::kU8);
  EXPECT_EQ(OpenTokens(PosixFileSystem(), dir.Sub("d"), 1, 4, 256).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto source = OpenTokens(PosixFileSystem(), dir.Sub("d"), 1, 3, 9);
  ASSERT_TRUE(source.ok());
  std::vector<int64_t> out(4);
  const absl::Status status = (*source)->Read(0, out.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("token 2 is 9"), absl::string_view::npos) << status;
}

TEST(Loader, AFileThatBecomesShorterIsAnErrorNotACrash) {
  const TempDir dir;
  Build(dir.Sub("d"), {std::vector<int32_t>(100, 1)}, TokenType::kU8);
  const auto source = OpenTokens(PosixFileSystem(), dir.Sub("d"), 1, 99, 256);
  ASSERT_TRUE(source.ok());
  WriteText(dir.Sub("d.bin"), "short");
  std::vector<int64_t> out(100);
  EXPECT_EQ((*source)->Read(0, out.data()).code(), absl::StatusCode::kDataLoss);
}

TEST(Text, BytesThatAreNotUtf8AreReadAsLatin1) {
  EXPECT_EQ(ToUtf8("a\xc3\xa9"
                   "b"),
            "a\xc3\xa9"
            "b");
  EXPECT_EQ(ToUtf8("a\xe9"
                   "b"),
            "a\xc3\xa9"
            "b");
  EXPECT_EQ(ToUtf8("\xc0\x80"), "\xc3\x80\xc2\x80");              // overlong
  EXPECT_EQ(ToUtf8("\xed\xa0\x80"), "\xc3\xad\xc2\xa0\xc2\x80");  // surrogate
  EXPECT_EQ(ToUtf8("\xe2\x82"), "\xc3\xa2\xc2\x82");              // cut short
  EXPECT_EQ(ToUtf8("\xf0\x9f\x99\x82"), "\xf0\x9f\x99\x82");
}

TEST(Text, ParagraphsAreRunsOfLinesBetweenBlankOnes) {
  EXPECT_EQ(SplitParagraphs("one\r\ntwo\n \n\n\nthree"),
            (std::vector<std::string>{"one\ntwo", "three"}));
  EXPECT_TRUE(SplitParagraphs("\n \n").empty());
}

TEST(Text, ASampleIsSpreadAndBounded) {
  std::vector<std::string> documents;
  for (int i = 0; i < 100; ++i)
    documents.push_back(std::string(10, static_cast<char>('a' + i / 10)));
  const auto sample = SampleDocuments(documents, 200);
  EXPECT_EQ(sample.size(), 20u);
  EXPECT_EQ(sample.front()[0], 'a');
  EXPECT_EQ(sample.back()[0], 'j');
  EXPECT_EQ(SampleDocuments(documents, 1000), documents);
}

std::string Story() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "The keeper of step " + std::to_string(i * 7919 % 1000) +
            " holds the arena,\nand the ranks go on.  Caf\xc3\xa9 \xe2\x98\x95\n\n";
  }
  return text;
}

TEST(Builder, TheTextComesBackFromTheTokensAndTheBytesAreTheSameTwice) {
  const TempDir dir;
  WriteText(dir.Sub("story.txt"), Story());
  for (const char* prefix : {"a", "b"}) {
    const auto built =
        BuildData(PosixFileSystem(),
                  {.inputs = {dir.Sub("story.txt")}, .prefix = dir.Sub(prefix), .vocab = 320});
    ASSERT_TRUE(built.ok()) << built.status();
    EXPECT_EQ(built->documents, 200u);
    EXPECT_EQ(built->vocab, 320);
  }
  EXPECT_EQ(ReadText(dir.Sub("a.bin")), ReadText(dir.Sub("b.bin")));
  EXPECT_EQ(ReadText(dir.Sub("a.idx")), ReadText(dir.Sub("b.idx")));
  EXPECT_EQ(ReadText(dir.Sub("a.model")), ReadText(dir.Sub("b.model")));
  const auto tokenizer = SentencePieceTokenizer(ReadText(dir.Sub("a.model")), "a.model");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto documents = SplitParagraphs(Story());
  for (const std::string& document :
       {documents[3], std::string("unseen \xf0\x9f\x99\x82\n  text\twith tabs")}) {
    std::vector<int32_t> tokens = (*tokenizer)->Encode(document);
    tokens.pop_back();  // the end-of-document token
    EXPECT_EQ((*tokenizer)->Decode(tokens), document);
  }
  // Another corpus with the same tokenizer.
  WriteText(dir.Sub("more.txt"), "More of the keeper.");
  const auto more = BuildData(
      PosixFileSystem(),
      {.inputs = {dir.Sub("more.txt")}, .prefix = dir.Sub("c"), .tokenizer = dir.Sub("a.model")});
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->vocab, 320);
}

TEST(Builder, BytesAreTokens) {
  const TempDir dir;
  WriteText(dir.Sub("t.txt"), "ab\n\nc");
  ASSERT_TRUE(BuildData(PosixFileSystem(),
                        {.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("d"), .byte_level = true})
                  .ok());
  const auto data = IndexedDataset::Open(PosixFileSystem(), dir.Sub("d"));
  ASSERT_TRUE(data.ok());
  std::vector<int64_t> tokens(5);
  ASSERT_EQ((*data)->tokens(), 5u);
  ASSERT_TRUE((*data)->Read(0, 5, tokens.data()).ok());
  EXPECT_EQ(tokens, (std::vector<int64_t>{'a', 'b', 0, 'c', 0}));
}

TEST(Builder, BadInputsAreNamedAndLeaveNothingBehind) {
  const TempDir dir;
  WriteText(dir.Sub("t.txt"), Story());
  WriteText(dir.Sub("blank.txt"), "\n\n");
  const struct {
    BuildOptions options;
    const char* says;
  } cases[] = {
      {{.inputs = {dir.Sub("no.txt")}, .prefix = dir.Sub("d"), .vocab = 320}, "no.txt"},
      {{.inputs = {dir.Sub("blank.txt")}, .prefix = dir.Sub("d"), .vocab = 320}, "holds no text"},
      {{.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("d"), .vocab = 5}, "--vocab 5"},
      {{.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("d"), .vocab = 90'000}, "--vocab 90000"},
      {{.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("d"), .vocab = 300, .byte_level = true},
       "256"},
      {{.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("d"), .tokenizer = dir.Sub("blank.txt")},
       "blank.txt"},
      {{.inputs = {dir.Sub("t.txt")}, .prefix = dir.Sub("no/where/d"), .byte_level = true},
       "no/where/d"},
  };
  for (const auto& bad : cases) {
    const absl::Status status = BuildData(PosixFileSystem(), bad.options).status();
    EXPECT_FALSE(status.ok()) << bad.says;
    EXPECT_NE(status.message().find(bad.says), absl::string_view::npos) << status;
  }
  EXPECT_EQ(*PosixFileSystem()->List(dir.path()), (std::vector<std::string>{"blank.txt", "t.txt"}));
}

}  // namespace
}  // namespace holdfast::worker
