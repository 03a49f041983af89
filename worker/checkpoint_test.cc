// SPDX-License-Identifier: Apache-2.0
// Training goes on from a committed checkpoint in a store directory, in the layout that wrote it
// (bit for bit) and in others.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/testing/temp_dir.h"
#include "ckpt/store.h"
#include "worker/testing/rank_threads.h"

namespace holdfast::worker {
namespace {

Config Small(int64_t dp, int64_t tp, int64_t accumulate) {
  Config config;
  config.model = {
      .vocab = 16, .dim = 16, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 24, .seq_len = 8};
  config.data.kind = "synthetic";
  config.train = {.steps = 6, .seed = 3, .micro_batch = 2, .accumulate = accumulate};
  config.optimizer.lr = 1e-2;
  config.parallel = {.dp = dp, .tp = tp};
  return config;
}

const CheckpointId kId{JobId{kTestJob}, 1, 3};

// Trains to step 3 on dp 2 x tp 2 and commits that state into `store`.
void SaveAtStepThree(const std::string& root) {
  std::vector<ArenaMemory> arenas(4);
  const auto outcomes =
      RunRanks({.config = Small(2, 2, 1), .arenas = &arenas, .arrange = [](int, ArenaLink* link) {
                  link->stale_at_step = 4;
                }});
  auto store = ckpt::Store::Open(PosixFileSystem(), root, {.use_uring = false});
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<ckpt::RankManifest> manifests;
  for (ArenaMemory& arena : arenas) {
    ASSERT_GE(arena.restore_buffer, 0);
    auto* header = reinterpret_cast<rank::ArenaHeader*>(arena.bytes.get());
    header->buffer[arena.restore_buffer].state.store(rank::kBufferWriting);  // as the agent does
    const auto manifest = (*store)->PrepareRank(
        kId, {arena.bytes.get(), arena.size, static_cast<uint32_t>(arena.restore_buffer)});
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    manifests.push_back(*manifest);
  }
  const auto record = ckpt::JoinManifests(manifests, 1'700'000'000'000'000'000);
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_TRUE((*store)->WriteCommit(kId, ckpt::EncodeCommitRecord(*record)).ok());
}

std::string Source(const std::string& root) { return "checkpoint:" + root + ":" + ToString(kId); }

TEST(Checkpoint, TheSameLayoutGoesOnBitForBit) {
  const testing::TempDir dir;
  SaveAtStepThree(dir.Sub("store"));
  const auto undisturbed = RunRanks({.config = Small(2, 2, 1)});
  const auto resumed =
      RunRanks({.config = Small(2, 2, 1), .attempt = 2, .restore = Source(dir.Sub("store"))});
  std::string problem;
  ASSERT_TRUE(resumed[0].status.ok()) << resumed[0].status;
  EXPECT_EQ(resumed[0].start.step, 3u);
  EXPECT_EQ(resumed[0].start.samples, undisturbed[0].records[2].samples);
  EXPECT_EQ(Assemble(resumed, &problem), Assemble(undisturbed, &problem));
  EXPECT_EQ(problem, "");
}

TEST(Checkpoint, OtherLayoutsStartFromTheSameBytesAndTheSameSamples) {
  const testing::TempDir dir;
  SaveAtStepThree(dir.Sub("store"));
  const auto undisturbed = RunRanks({.config = Small(2, 2, 1)});
  for (const auto& [dp, tp, accumulate] :
       {std::array{1, 1, 2}, std::array{1, 2, 2}, std::array{2, 1, 1}}) {
    const auto resumed = RunRanks(
        {.config = Small(dp, tp, accumulate), .attempt = 2, .restore = Source(dir.Sub("store"))});
    ASSERT_TRUE(resumed[0].status.ok()) << resumed[0].status;
    ASSERT_EQ(resumed[0].records.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(resumed[0].records[i].loss / undisturbed[0].records[i + 3].loss, 1.0, 1e-5)
          << dp << "x" << tp << " step " << i + 4;
      EXPECT_EQ(resumed[0].records[i].samples, undisturbed[0].records[i + 3].samples);
    }
  }
}

TEST(Checkpoint, AMissingOneAndAnotherModelAreRefusedByName) {
  const testing::TempDir dir;
  SaveAtStepThree(dir.Sub("store"));
  const auto missing = RunRanks(
      {.config = Small(1, 1, 1), .restore = "checkpoint:" + dir.Sub("store") + ":j-1@4.1"});
  EXPECT_EQ(missing[0].status.code(), absl::StatusCode::kNotFound) << missing[0].status;
  // Larger, and smaller: a part of what is stored would fit.
  for (const int64_t ffn : {48, 16}) {
    Config config = Small(1, 1, 1);
    config.model.ffn = ffn;
    const auto other = RunRanks({.config = config, .restore = Source(dir.Sub("store"))});
    EXPECT_EQ(other[0].status.code(), absl::StatusCode::kInvalidArgument) << other[0].status;
    EXPECT_NE(other[0].status.message().find("ffn"), absl::string_view::npos) << other[0].status;
  }
  Config shallower = Small(1, 1, 1);
  --shallower.model.layers;
  const auto other = RunRanks({.config = shallower, .restore = Source(dir.Sub("store"))});
  EXPECT_EQ(other[0].status.code(), absl::StatusCode::kInvalidArgument) << other[0].status;
  EXPECT_NE(other[0].status.message().find("it also has"), absl::string_view::npos)
      << other[0].status;
}

}  // namespace
}  // namespace holdfast::worker
