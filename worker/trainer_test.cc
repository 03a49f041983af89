// SPDX-License-Identifier: Apache-2.0
// Whole steps on small models: every layout computes the same, a run is repeated bit for bit, a
// resumed run equals the undisturbed one bit for bit, and the gates notice the faults they are for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "worker/testing/rank_threads.h"

namespace holdfast::worker {
namespace {

constexpr double kLayoutTolerance = 1e-5;  // relative; fp32 sums in another order

Config Small(int64_t dp, int64_t tp, int64_t accumulate) {
  Config config;
  config.model = {
      .vocab = 16, .dim = 16, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 24, .seq_len = 8};
  config.data.kind = "synthetic";
  config.train = {.steps = 5, .seed = 7, .micro_batch = 2, .accumulate = accumulate};
  config.optimizer.lr = 1e-2;
  config.optimizer.warmup_steps = 2;
  config.optimizer.clip_norm = 0.5;
  config.parallel = {.dp = dp, .tp = tp};
  return config;
}

std::vector<RankOutcome> TrainAll(const RunPlan& plan) {
  auto outcomes = RunRanks(plan);
  for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  return outcomes;
}

std::vector<double> Losses(const RankOutcome& outcome) {
  std::vector<double> losses;
  for (const auto& record : outcome.records) losses.push_back(record.loss);
  return losses;
}

double WorstRelative(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(a[i]));
  return worst;
}

// Relative Frobenius distance of the worst tensor whose name begins with `prefix`.
double WorstTensor(const std::map<std::string, std::vector<float>>& a,
                   const std::map<std::string, std::vector<float>>& b, const std::string& prefix) {
  double worst = 0;
  int compared = 0;
  for (const auto& [name, values] : a) {
    if (!name.starts_with(prefix)) continue;
    const auto& other = b.at(name);
    EXPECT_EQ(values.size(), other.size()) << name;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(static_cast<double>(values[i]) - other[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_GT(norm, 0) << name;
    worst = std::max(worst, std::sqrt(difference / norm));
    ++compared;
  }
  EXPECT_GT(compared, 0);
  return worst;
}

std::map<std::string, std::vector<float>> Whole(const std::vector<RankOutcome>& outcomes) {
  std::string problem;
  auto tensors = Assemble(outcomes, &problem);
  EXPECT_EQ(problem, "");
  return tensors;
}

struct Layout {
  int64_t dp, tp, accumulate;
};

class EveryLayout : public testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, GivesTheLossesNormsAndGradientsOfOneRank) {
  const Layout& p = GetParam();
  const auto one = TrainAll({.config = Small(1, 1, 4)});
  const auto many = TrainAll({.config = Small(p.dp, p.tp, p.accumulate)});
  EXPECT_LT(WorstRelative(Losses(one[0]), Losses(many[0])), kLayoutTolerance);
  for (size_t i = 0; i < one[0].records.size(); ++i) {
    EXPECT_NEAR(many[0].records[i].grad_norm / one[0].records[i].grad_norm, 1.0, kLayoutTolerance);
    EXPECT_EQ(many[0].records[i].samples, one[0].records[i].samples);
  }
  for (const RankOutcome& outcome : many) EXPECT_EQ(Losses(outcome), Losses(many[0]));
  // Gradients of the first step: later ones follow parameters that already differ in the last bits.
  Config first = Small(1, 1, 4), first_many = Small(p.dp, p.tp, p.accumulate);
  first.train.steps = first_many.train.steps = 1;
  first.optimizer.warmup_steps = first_many.optimizer.warmup_steps = 0;
  EXPECT_LT(WorstTensor(Whole(TrainAll({.config = first})), Whole(TrainAll({.config = first_many})),
                        "grad."),
            kLayoutTolerance);
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryLayout,
                         testing::Values(Layout{1, 2, 4}, Layout{2, 1, 2}, Layout{2, 2, 2},
                                         Layout{4, 1, 1}),
                         [](const auto& mesh) {
                           return "Dp" + std::to_string(mesh.param.dp) + "Tp" +
                                  std::to_string(mesh.param.tp);
                         });

TEST(Layouts, ATiedHeadIsTheSameOnTwoTensorParallelRanks) {
  Config one = Small(1, 1, 1), two = Small(1, 2, 1);
  one.model.tied = two.model.tied = true;
  EXPECT_LT(
      WorstRelative(Losses(TrainAll({.config = one})[0]), Losses(TrainAll({.config = two})[0])),
      kLayoutTolerance);
}

TEST(Gate, NoticesASkippedGradientReduction) {
  const auto right = TrainAll({.config = Small(2, 1, 1)});
  const auto wrong = TrainAll({.config = Small(2, 1, 1), .skip_gradient_reduction = true});
  EXPECT_GT(WorstRelative(Losses(right[0]), Losses(wrong[0])), 10 * kLayoutTolerance);
  std::string problem;
  Assemble(wrong, &problem);
  EXPECT_NE(problem, "");  // and the replicas have drifted apart
}

TEST(Gate, NoticesADroppedMicroBatch) {
  const auto right = TrainAll({.config = Small(2, 1, 2)});
  const auto wrong = TrainAll({.config = Small(2, 1, 2), .drop = {.step = 2, .rank = 1}});
  EXPECT_EQ(right[0].records[1].loss, wrong[0].records[1].loss);  // the step itself looks the same
  EXPECT_NE(right[0].records[1].grad_norm, wrong[0].records[1].grad_norm);
  EXPECT_GT(WorstTensor(Whole(right), Whole(wrong), "param."), 10 * kLayoutTolerance);
}

TEST(Gate, NoticesADifferentSeed) {
  Config other = Small(1, 1, 1);
  other.train.seed = 8;
  EXPECT_GT(WorstRelative(Losses(TrainAll({.config = Small(1, 1, 1)})[0]),
                          Losses(TrainAll({.config = other})[0])),
            10 * kLayoutTolerance);
}

TEST(Determinism, ARunIsRepeatedBitForBit) {
  const auto first = TrainAll({.config = Small(2, 2, 1)}),
             second = TrainAll({.config = Small(2, 2, 1)});
  EXPECT_EQ(Losses(first[0]), Losses(second[0]));
  EXPECT_EQ(Whole(first), Whole(second));
}

TEST(Resume, FromASnapshotEqualsTheUndisturbedRunBitForBit) {
  const auto undisturbed = TrainAll({.config = Small(2, 2, 1)});
  std::vector<ArenaMemory> arenas(4);
  const auto before =
      TrainAll({.config = Small(2, 2, 1), .arenas = &arenas, .arrange = [](int, ArenaLink* link) {
                  link->stale_at_step = 4;
                }});
  for (const RankOutcome& outcome : before) {
    EXPECT_EQ(outcome.end, RunEnd::kStale);
    EXPECT_EQ(outcome.sealed, (std::vector<uint64_t>{1, 2, 3}));
  }
  const auto after = TrainAll({.config = Small(2, 2, 1), .arenas = &arenas, .attempt = 2});
  EXPECT_EQ(after[0].start.step, 3u);
  EXPECT_EQ(after[0].start.samples, undisturbed[0].records[2].samples);
  const auto all = Losses(undisturbed[0]);
  EXPECT_EQ(Losses(after[0]), std::vector<double>(all.begin() + 3, all.end()));
  EXPECT_EQ(Whole(after), Whole(undisturbed));
}

TEST(Resume, BehindTheLastStepOnlyBringsThatStateToTheStore) {
  std::vector<ArenaMemory> arenas(2);
  TrainAll({.config = Small(2, 1, 1), .arenas = &arenas});
  const auto again = TrainAll({.config = Small(2, 1, 1), .arenas = &arenas, .attempt = 2});
  for (const RankOutcome& outcome : again) {
    EXPECT_EQ(outcome.start.step, 5u);
    EXPECT_EQ(outcome.end, RunEnd::kDone);
    EXPECT_TRUE(outcome.records.empty());
    EXPECT_EQ(outcome.persisted, (std::vector<uint64_t>{5}));
  }
}

TEST(Snapshots, AreTakenWhenDueAndPersistedWhenAskedFor) {
  std::vector<ArenaMemory> arenas(2);
  const auto run = TrainAll(
      {.config = Small(2, 1, 1), .arenas = &arenas, .snapshot_every = 2, .persist_every = 4});
  EXPECT_EQ(run[0].sealed, (std::vector<uint64_t>{2, 4, 5}));  // 5 is the last step
  EXPECT_EQ(run[1].persisted, (std::vector<uint64_t>{4, 5}));
}

TEST(Snapshots, ASaveRequestToRankZeroPersistsTheNextStepOnAllRanks) {
  std::vector<ArenaMemory> arenas(2);
  const auto run = TrainAll(
      {.config = Small(2, 1, 1), .arenas = &arenas, .arrange = [](int rank, ArenaLink* link) {
         if (rank == 0) link->save_at_step = 3;
       }});
  EXPECT_EQ(run[0].persisted, (std::vector<uint64_t>{3, 5}));
  EXPECT_EQ(run[1].persisted, (std::vector<uint64_t>{3, 5}));
}

TEST(Snapshots, AreSkippedByAllRanksWhenOneIsNotReadyAndAnOwedPersistIsMadeUp) {
  std::vector<ArenaMemory> arenas(2);
  const auto run = TrainAll({.config = Small(2, 1, 1),
                             .arenas = &arenas,
                             .persist_every = 2,
                             .arrange = [](int rank, ArenaLink* link) {
                               if (rank == 1) link->busy_until_step = 3;
                             }});
  for (const RankOutcome& outcome : run) {
    EXPECT_EQ(outcome.skipped, 2);
    EXPECT_EQ(outcome.sealed, (std::vector<uint64_t>{3, 4, 5}));
    EXPECT_EQ(outcome.persisted, (std::vector<uint64_t>{3, 4, 5}));
  }
}

TEST(Stop, OfOneRankEndsAllAfterAPersistedSnapshotOfThatStep) {
  std::vector<ArenaMemory> arenas(2);
  const auto run = TrainAll({.config = Small(2, 1, 1),
                             .arenas = &arenas,
                             .snapshot_every = 0,
                             .arrange = [](int rank, ArenaLink* link) {
                               if (rank == 1) link->stop_at_step = 3;
                             }});
  for (const RankOutcome& outcome : run) {
    EXPECT_EQ(outcome.end, RunEnd::kStopped);
    EXPECT_EQ(outcome.persisted, (std::vector<uint64_t>{3}));
  }
}

TEST(Numbers, ALossThatIsNotFiniteStopsAllRanksBeforeTheUpdate) {
  const auto poison = [](int rank, TrainState* state) {
    for (const ckpt::TensorView& view : state->Views()) {
      if (rank == 1 && view.name == "param.norm") static_cast<float*>(view.data)[3] = NAN;
    }
  };
  Config nothing = Small(2, 1, 1);
  nothing.optimizer.lr = 0;  // leaves the parameters as they begin
  nothing.optimizer.min_lr = 0;
  const auto begin = TrainAll({.config = nothing});
  const auto outcomes = RunRanks({.config = Small(2, 1, 1), .after_prepare = poison});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kOutOfRange) << outcome.status;
    EXPECT_TRUE(outcome.records.empty());
  }
  ASSERT_EQ(outcomes[0].boxes.size(), begin[0].boxes.size());
  for (size_t i = 0; i < begin[0].boxes.size(); ++i) {
    if (!begin[0].boxes[i].name.starts_with("param.")) continue;
    EXPECT_EQ(outcomes[0].boxes[i].values, begin[0].boxes[i].values) << begin[0].boxes[i].name;
  }
}

}  // namespace
}  // namespace holdfast::worker
