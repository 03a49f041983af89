// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/start_point.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kJob = 7;

records::AttemptLink Link(uint64_t attempt, v1::StartPoint::Source source, uint64_t from_attempt,
                          uint64_t step, uint64_t job = kJob) {
  records::AttemptLink link;
  link.set_attempt(attempt);
  link.mutable_start()->set_source(source);
  if (source != v1::StartPoint::SOURCE_SCRATCH) {
    link.mutable_start()->mutable_ref()->set_job(job);
    link.mutable_start()->mutable_ref()->set_attempt(from_attempt);
    link.mutable_start()->mutable_ref()->set_step(step);
  }
  return link;
}
constexpr auto kScratch = v1::StartPoint::SOURCE_SCRATCH;
constexpr auto kSnapshot = v1::StartPoint::SOURCE_SNAPSHOT;
constexpr auto kCheckpoint = v1::StartPoint::SOURCE_CHECKPOINT;

v1::Placement TwoNodes() {
  v1::Placement p;
  for (int n = 0; n < 2; ++n) {
    auto* node = p.add_nodes();
    node->set_node(n == 0 ? "n0" : "n1");
    for (int r = 0; r < 2; ++r) node->add_ranks()->set_rank(2 * n + r);
  }
  return p;
}

std::map<std::string, NodeArenas> AllHold(const std::vector<Point>& points) {
  return {{"n0", {{0, points}, {1, points}}}, {"n1", {{2, points}, {3, points}}}};
}

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step, uint64_t job = kJob) {
  v1::CheckpointRef ref;
  ref.set_job(job);
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

class StartPointTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::StartPoint> Choose(uint64_t wanted = 0) {
    const Line line(kJob, links_);
    StartRequest request;
    request.job = kJob;
    request.placement = &placement_;
    request.arenas = &arenas_;
    request.line = &line;
    request.committed = committed_;
    request.from = from_;
    request.damaged = damaged_;
    request.wanted_step = wanted;
    return ChooseStartPoint(request);
  }
  void Expect(v1::StartPoint::Source source, uint64_t attempt, uint64_t step, uint64_t wanted = 0) {
    const auto start = Choose(wanted);
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_EQ(start->source(), source) << DescribeStart(*start);
    EXPECT_EQ(start->ref().attempt(), attempt) << DescribeStart(*start);
    EXPECT_EQ(start->ref().step(), step) << DescribeStart(*start);
  }
  v1::Placement placement_ = TwoNodes();
  std::map<std::string, NodeArenas> arenas_;
  std::vector<v1::CheckpointRef> committed_;
  std::vector<records::AttemptLink> links_ = {Link(1, kScratch, 0, 0)};
  v1::CheckpointRef from_;
  std::vector<v1::StartPoint> damaged_;
};

TEST_F(StartPointTest, NothingThereMeansScratch) { Expect(kScratch, 0, 0); }

TEST_F(StartPointTest, TheNewerOfMemoryAndStore) {
  arenas_ = AllHold({{1, 12}, {1, 11}});
  committed_ = {Ref(1, 10)};
  Expect(kSnapshot, 1, 12);
  committed_ = {Ref(1, 10), Ref(1, 15)};
  Expect(kCheckpoint, 1, 15);
  committed_ = {Ref(1, 12)};
  Expect(kSnapshot, 1, 12);
}

TEST_F(StartPointTest, WhatIsDamagedIsLeftOutUnlessItIsAskedFor) {
  arenas_ = AllHold({{1, 12}, {1, 11}});
  committed_ = {Ref(1, 5), Ref(1, 11)};
  const auto damage = [&](v1::StartPoint::Source source, uint64_t step) {
    v1::StartPoint point;
    point.set_source(source);
    *point.mutable_ref() = Ref(1, step);
    damaged_.push_back(point);
  };
  damage(kSnapshot, 12);
  Expect(kSnapshot, 1, 11);
  damage(kSnapshot, 11);
  Expect(kCheckpoint, 1, 11);
  damage(kCheckpoint, 11);
  Expect(kCheckpoint, 1, 5);
  Expect(kSnapshot, 1, 12, /*wanted=*/12);
}

TEST_F(StartPointTest, ASnapshotNeedsEveryRankOnTheNodeWhereItWillRun) {
  arenas_ = AllHold({{1, 12}, {1, 11}});
  arenas_["n1"][3] = {{1, 11}};
  Expect(kSnapshot, 1, 11);
  arenas_["n1"].erase(3);
  Expect(kScratch, 0, 0);
  arenas_ = AllHold({{1, 12}});
  placement_.mutable_nodes(1)->set_node("n2");
  committed_ = {Ref(1, 5)};
  Expect(kCheckpoint, 1, 5);
}

TEST_F(StartPointTest, WhatAnOlderAttemptMadeBeyondTheStartIsOffTheLine) {
  links_ = {Link(1, kScratch, 0, 0), Link(2, kCheckpoint, 1, 10)};
  committed_ = {Ref(1, 10), Ref(1, 20)};
  arenas_ = AllHold({{1, 22}});
  Expect(kCheckpoint, 1, 10);
  Expect(kCheckpoint, 1, 20, /*wanted=*/20);
  committed_.push_back(Ref(2, 15));
  Expect(kCheckpoint, 2, 15);
}

TEST_F(StartPointTest, TheLineGoesBackThroughSeveralAttempts) {
  links_ = {Link(1, kScratch, 0, 0), Link(2, kSnapshot, 1, 10), Link(3, kCheckpoint, 1, 5),
            Link(5, kSnapshot, 3, 9)};
  const Line line(kJob, links_);
  EXPECT_TRUE(line.Contains({5, 1000}));
  EXPECT_TRUE(line.Contains({3, 9}));
  EXPECT_FALSE(line.Contains({3, 10}));
  EXPECT_TRUE(line.Contains({1, 5}));
  EXPECT_FALSE(line.Contains({1, 6}));
  EXPECT_FALSE(line.Contains({2, 1})) << "attempt 2 is no ancestor of 5";
  PruneLine(kJob, &links_);
  EXPECT_EQ(links_.size(), 3u);
  const Line pruned(kJob, links_);
  EXPECT_TRUE(pruned.Contains({1, 5}));
  EXPECT_FALSE(pruned.Contains({1, 6}));
}

TEST_F(StartPointTest, ALineIsBounded) {
  links_.clear();
  links_.push_back(Link(1, kScratch, 0, 0));
  for (uint64_t a = 2; a < 3000; ++a) links_.push_back(Link(a, kSnapshot, a - 1, a));
  PruneLine(kJob, &links_);
  EXPECT_EQ(static_cast<int>(links_.size()), kLineLinksMax);
  const Line line(kJob, links_);
  EXPECT_TRUE(line.Contains({2999, 1}));
  EXPECT_TRUE(line.Contains({2998, 2999}));
  EXPECT_FALSE(line.Contains({2998, 3000}));
}

TEST_F(StartPointTest, AnotherJobsCheckpointIsTheRoot) {
  links_.clear();
  from_ = Ref(3, 100, 42);
  const auto first = Choose();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->ref().job(), 42u);
  links_ = {Link(1, kCheckpoint, 3, 100, 42)};
  from_ = {};
  const auto again = Choose();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->source(), kCheckpoint);
  EXPECT_EQ(again->ref().job(), 42u);
  EXPECT_EQ(again->ref().step(), 100u);
  committed_ = {Ref(1, 110)};
  Expect(kCheckpoint, 1, 110);
}

TEST_F(StartPointTest, AStepThatIsNotThereIsNamed) {
  committed_ = {Ref(1, 10)};
  const auto start = Choose(11);
  EXPECT_EQ(start.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(start.status().message(), HasSubstr("step 11; committed steps: 10"));
}

}  // namespace
}  // namespace holdfast::sched
