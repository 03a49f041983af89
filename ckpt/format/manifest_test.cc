// SPDX-License-Identifier: Apache-2.0
#include "ckpt/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckpt/format/digest_text.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/validate.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

TensorRecord Tensor(const std::string& name, std::vector<uint64_t> shape, Box box,
                    uint32_t replica = 0, uint64_t digest = 7) {
  TensorRecord t;
  t.name = name;
  t.dtype = rank::kF32;
  t.global_shape = std::move(shape);
  t.box = std::move(box);
  t.replica = replica;
  t.bytes = *Product(t.box.size) * 4;
  t.digest = {digest, digest + 1};
  return t;
}

RankManifest Manifest(uint32_t rank, uint32_t world, std::vector<TensorRecord> tensors) {
  RankManifest m;
  m.id = {JobId{42}, 3, 100};
  m.rank = rank;
  m.world_size = world;
  m.samples = 800;
  m.tensors = std::move(tensors);
  if (LayOutPack(&m) > 0) m.pack_digest = PackTableDigest(m);
  return m;
}

// Two ranks that hold the halves of a matrix; rank 1 also a replica of the vector that rank 0
// writes.
std::vector<RankManifest> Good() {
  return {Manifest(0, 2, {Tensor("w", {4, 6}, {{0, 0}, {4, 3}}), Tensor("b", {5}, {{0}, {5}})}),
          Manifest(1, 2, {Tensor("w", {4, 6}, {{0, 3}, {4, 3}}), Tensor("b", {5}, {{0}, {5}}, 1)})};
}

// The text of a body with a right first line: what a careful attacker would write.
std::string Sealed(const std::string& kind, const std::string& body,
                   const std::string& version = "1") {
  return absl::StrCat("holdfast-", kind, " ", version, " ",
                      DigestHex(Xxh128(body.data(), body.size())), " ", body.size(), "\n", body);
}

std::string Body(const std::string& text) { return text.substr(text.find('\n') + 1); }

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

TEST(ManifestTest, RoundTrips) {
  const std::string text = EncodeRankManifest(Good()[1]);
  const absl::StatusOr<RankManifest> back = DecodeRankManifest(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeRankManifest(*back), text);
  EXPECT_EQ(back->tensors[0].box, (Box{{0, 3}, {4, 3}}));
  const std::string record = EncodeCommitRecord(*JoinManifests(Good(), 17));
  ASSERT_TRUE(DecodeCommitRecord(record).ok()) << DecodeCommitRecord(record).status();
  EXPECT_EQ(EncodeCommitRecord(*DecodeCommitRecord(record)), record);
}

TEST(ManifestTest, NumbersKeepAll64Bits) {
  RankManifest m = Good()[0];
  m.samples = ~0ull;
  m.id.job.value = ~0ull;
  EXPECT_EQ(DecodeRankManifest(EncodeRankManifest(m))->samples, ~0ull);
  EXPECT_EQ(DecodeRankManifest(EncodeRankManifest(m))->id.job.value, ~0ull);
}

TEST(ManifestTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const std::string manifest = EncodeRankManifest(Good()[1]),
                    record = EncodeCommitRecord(*JoinManifests(Good(), 17));
  for (size_t at = 0; at < record.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = record;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      EXPECT_FALSE(DecodeCommitRecord(bad).ok()) << at;
      if (at >= manifest.size()) continue;
      bad = manifest;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      EXPECT_FALSE(DecodeRankManifest(bad).ok()) << at;
    }
    EXPECT_FALSE(DecodeCommitRecord(record.substr(0, at)).ok()) << at;
  }
  EXPECT_FALSE(DecodeCommitRecord(record + "\n").ok());
  EXPECT_FALSE(DecodeCommitRecord(manifest).ok()) << "a manifest is no commit record";
}

TEST(ManifestTest, ANewerVersionIsRefusedAsSuch) {
  const std::string body = Body(EncodeRankManifest(Good()[0]));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(DecodeRankManifest(Sealed("manifest", body, "2")).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeRankManifest(Sealed("manifest", body, "0")).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeRankManifest(Sealed("manifest", body, "01")).status()));
}

TEST(ManifestTest, HostileTextWithARightDigestIsRefusedNamingTheField) {
  const std::string body = Body(EncodeRankManifest(Good()[1]));
  struct Case {
    std::string from, to, text;
  };
  const Case cases[] = {
      {"\"samples\":800,", "", "samples: missing"},
      {"\"samples\":800", "\"samples\":-1", "samples: must be a number"},
      {"\"samples\":800", "\"samples\":1.5", "samples: must be a number"},
      {"\"samples\":800", "\"samples\":\"800\"", "samples: must be a number"},
      {"\"samples\":800", "\"samples\":800,\"extra\":1", "extra: unknown field"},
      {"\"samples\":800", "\"samples\":1,\"samples\":800", "canonical"},
      {"\"samples\":800", "\"samples\": 800", "canonical"},
      {"\"samples\":800", "\"samples\":99999999999999999999", "samples"},
      {"\"rank\":1", "\"rank\":4294967296", "rank"},
      {"\"rank\":1", "\"rank\":2", "rank: 2 is not below world_size 2"},
      {"\"world_size\":2", "\"world_size\":4000000000", "world_size"},
      {"\"job\":42", "\"job\":0", "job"},
      {"\"attempt\":3", "\"attempt\":0", "attempt"},
      {"rank-00001.pack", "../../etc/pwd", "pack: must be 'rank-00001.pack'"},
      {"\"name\":\"w\"", "\"name\":\"\"", "tensors[0].name"},
      {"\"name\":\"w\"", "\"name\":\"\\u0000\"", "tensors[0].name"},
      {"\"dtype\":\"f32\"", "\"dtype\":\"f31\"", "tensors[0].dtype"},
      {"\"shape\":[4,6]", "\"shape\":[4,5]", "leaves the tensor"},
      {"\"shape\":[4,6]", "\"shape\":[18446744073709551615,6]", "overflows"},
      {"\"shape\":[4,6]", "\"shape\":[4,6,1]", "leaves the tensor"},
      {"\"shape\":[4,6]", "\"shape\":[1,1,1,1,1,1,1,1,1]", "items, above 8"},
      {"\"offset\":[0,3]", "\"offset\":[0,18446744073709551615]", "leaves the tensor"},
      {"\"bytes\":48", "\"bytes\":47", "bytes"},
      {"\"pack_offset\":4096", "\"pack_offset\":0", "pack_offset"},
      {"\"pack_offset\":4096", "\"pack_offset\":4097", "pack_offset"},
      {"\"pack_offset\":4096", "\"pack_offset\":12288", "leaves the pack"},
      {"\"pack_bytes\":12288", "\"pack_bytes\":4096", "pack_bytes"},
      {"\"tensors\":[", "\"tensors\":7,\"x\":[", "tensors: must be an array"},
  };
  for (const Case& c : cases) {
    const absl::Status status =
        DecodeRankManifest(Sealed("manifest", Replaced(body, c.from, c.to))).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.to << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text)) << c.to;
  }
  for (const std::string& bad :
       {std::string(), std::string("null\n"), std::string("[]\n"), std::string("{\n"),
        std::string(100000, '['), std::string("\xff\xfe\n"), std::string(1, '\0')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRankManifest(Sealed("manifest", bad)).status()))
        << bad.substr(0, 9);
  }
}

TEST(ManifestTest, OverlappingPlacesInThePackAreRefused) {
  RankManifest m =
      Manifest(0, 1, {Tensor("a", {2000}, {{0}, {2000}}), Tensor("b", {5}, {{0}, {5}})});
  m.tensors[1].pack_offset = 8192;
  const absl::Status status = DecodeRankManifest(EncodeRankManifest(m)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("overlap in the pack"));
}

TEST(ManifestTest, ARecordThatIsNotTheJoinOfItsRanksIsRefused) {
  const std::string body = Body(EncodeCommitRecord(*JoinManifests(Good(), 17)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      DecodeCommitRecord(Sealed("commit", Replaced(body, "\"total_bytes\":", "\"total_bytes\":1")))
          .status()));
  const absl::Status hole =
      DecodeCommitRecord(Sealed("commit", Replaced(body, "\"shape\":[4,6],\"offset\":[0,0]",
                                                   "\"shape\":[4,7],\"offset\":[0,0]")))
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(hole)) << hole;
}

// ---- Joining ----

absl::Status JoinStatus(const std::vector<RankManifest>& manifests) {
  return JoinManifests(manifests, 1).status();
}

TEST(JoinTest, OrderDoesNotMatter) {
  std::vector<RankManifest> swapped = Good();
  std::swap(swapped[0], swapped[1]);
  EXPECT_EQ(EncodeCommitRecord(*JoinManifests(swapped, 1)),
            EncodeCommitRecord(*JoinManifests(Good(), 1)));
}

TEST(JoinTest, MissingAndDoubledRanks) {
  EXPECT_THAT(std::string(JoinStatus({}).message()), HasSubstr("no rank"));
  EXPECT_THAT(std::string(JoinStatus({Good()[0]}).message()), HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(std::string(JoinStatus({Good()[1]}).message()), HasSubstr("rank 0 of 2 is missing"));
  EXPECT_THAT(std::string(JoinStatus({Good()[0], Good()[1], Good()[1]}).message()),
              HasSubstr("rank 1 is there twice"));
}

TEST(JoinTest, RanksThatDisagree) {
  std::vector<RankManifest> m = Good();
  m[1].id.step = 101;
  EXPECT_THAT(std::string(JoinStatus(m).message()), HasSubstr("j-42@101.3"));
  m = Good();
  m[1].samples = 801;
  EXPECT_THAT(std::string(JoinStatus(m).message()), HasSubstr("samples 800 and 801"));
  m = {Good()[0], Manifest(1, 2, {Tensor("w", {4, 7}, {{0, 3}, {4, 3}})})};
  EXPECT_THAT(std::string(JoinStatus(m).message()),
              HasSubstr("[4,6] f32 on rank 0 and [4,7] f32 on rank 1"));
}

TEST(JoinTest, AReplicaThatDiffersIsSilentCorruptionNamingBothRanks) {
  std::vector<RankManifest> m = Good();
  m[1].tensors[1].digest.low ^= 1;
  const absl::Status status = JoinStatus(m);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("silent corruption: tensor 'b'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (written) and rank 1 (replica 1)"));
}

TEST(JoinTest, AReplicaOfABoxThatNobodyWrites) {
  const std::vector<RankManifest> m = {Manifest(0, 2, {Tensor("b", {5}, {{0}, {5}})}),
                                       Manifest(1, 2, {Tensor("b", {5}, {{0}, {4}}, 1)})};
  EXPECT_THAT(std::string(JoinStatus(m).message()), HasSubstr("which no rank writes"));
}

// One rank that holds `boxes` of a tensor.
absl::Status Cover(std::vector<uint64_t> shape, std::vector<Box> boxes) {
  std::vector<TensorRecord> tensors;
  for (Box& box : boxes) tensors.push_back(Tensor("t", shape, std::move(box)));
  return JoinStatus({Manifest(0, 1, std::move(tensors))});
}

TEST(JoinTest, CoverageIsExactInAnyNumberOfDimensions) {
  EXPECT_TRUE(Cover({}, {{{}, {}}}).ok());
  EXPECT_THAT(std::string(Cover({}, {{{}, {}}, {{}, {}}}).message()), HasSubstr("overlap"));
  EXPECT_TRUE(Cover({0, 3}, {}).ok()) << "no record at all of a tensor is no tensor";
  EXPECT_TRUE(Cover({0, 3}, {{{0, 0}, {0, 3}}}).ok());
  EXPECT_TRUE(Cover({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 1}}, {{2, 1}, {2, 3}}}).ok());
  EXPECT_THAT(std::string(Cover({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 3}}}).message()),
              HasSubstr("not covered"));
  // Volumes that add up, but one place is covered twice and another never.
  EXPECT_THAT(std::string(Cover({4, 4}, {{{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}}).message()),
              HasSubstr("overlap"));
  EXPECT_THAT(std::string(Cover({4, 4}, {{{0, 0}, {4, 2}}, {{0, 1}, {4, 2}}}).message()),
              HasSubstr("overlap"));
  // A pinwheel: no straight cut separates the boxes.
  const std::vector<Box> pinwheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_TRUE(Cover({3, 3}, pinwheel).ok()) << Cover({3, 3}, pinwheel);
  // An empty box lies anywhere.
  EXPECT_TRUE(Cover({4}, {{{0}, {4}}, {{2}, {0}}}).ok());
}

TEST(JoinTest, AgreesWithCountingCellsOnRandomBoxes) {
  uint64_t random = 12345;
  auto next = [&random](uint64_t below) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    return (random >> 33) % below;
  };
  int good = 0;
  for (int round = 0; round < 3000; ++round) {
    // Cut a 3 x 4 x 2 tensor into random columns, then disturb one box in half of the rounds.
    const std::vector<uint64_t> shape = {3, 4, 2};
    std::vector<Box> boxes;
    const uint64_t a = next(4), b = next(5);
    boxes.push_back({{0, 0, 0}, {a, 4, 2}});
    boxes.push_back({{a, 0, 0}, {3 - a, b, 2}});
    boxes.push_back({{a, b, 0}, {3 - a, 4 - b, 1}});
    boxes.push_back({{a, b, 1}, {3 - a, 4 - b, 1}});
    if (next(2) == 0) {
      Box& box = boxes[next(4)];
      const size_t d = next(3);
      box.offset[d] = next(shape[d] + 1);
      box.size[d] = next(shape[d] - box.offset[d] + 1);
    }
    int cells[3][4][2] = {};
    for (const Box& box : boxes) {
      for (uint64_t i = 0; i < box.size[0]; ++i)
        for (uint64_t j = 0; j < box.size[1]; ++j)
          for (uint64_t k = 0; k < box.size[2]; ++k)
            ++cells[box.offset[0] + i][box.offset[1] + j][box.offset[2] + k];
    }
    bool exact = true;
    for (const auto& plane : cells)
      for (const auto& row : plane)
        for (const int cell : row) exact = exact && cell == 1;
    good += exact;
    ASSERT_EQ(Cover(shape, boxes).ok(), exact) << "round " << round;
  }
  EXPECT_GT(good, 100);
}

TEST(DigestTextTest, ParsesExactlyWhatItWrites) {
  const rank::Digest128 digest{0x0123456789abcdefull, 0xfedcba9876543210ull};
  EXPECT_EQ(DigestHex(digest), "fedcba98765432100123456789abcdef");
  rank::Digest128 back;
  ASSERT_TRUE(ParseDigestHex(DigestHex(digest), &back));
  EXPECT_EQ(back, digest);
  for (const char* bad :
       {"", "fedcba98765432100123456789abcde", "FEDCBA98765432100123456789ABCDEF",
        "fedcba98765432100123456789abcdeg", "fedcba98765432100123456789abcdef0"}) {
    EXPECT_FALSE(ParseDigestHex(bad, &back)) << bad;
  }
}

TEST(NamesTest, AreThoseOfTheFormat) {
  EXPECT_EQ(CheckpointDirName({JobId{42}, 3, 100}), "jobs/j-42/100.3");
  EXPECT_EQ(PackFileName(3), "rank-00003.pack");
  EXPECT_EQ(RankManifestFileName(123456), "rank-123456.manifest");
}

}  // namespace
}  // namespace holdfast::ckpt
