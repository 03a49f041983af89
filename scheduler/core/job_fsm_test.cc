// SPDX-License-Identifier: Apache-2.0
#include "scheduler/core/job_fsm.h"

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace holdfast::sched {
namespace {

// The tests run with the source tree as working directory.
std::multiset<std::string> LinesOfPage() {
  std::ifstream in("scheduler/core/job_fsm.md");
  EXPECT_TRUE(in.good()) << "scheduler/core/job_fsm.md cannot be read from the working directory";
  std::multiset<std::string> lines;
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("| ", 0) != 0 || line.rfind("| from", 0) == 0) continue;
    std::istringstream cells(line);
    std::string bar, from, event, to;
    cells >> bar >> from >> bar >> event >> bar >> to;
    lines.insert(from + " " + event + " " + to);
  }
  return lines;
}

TEST(JobFsm, PageAndTableAgree) {
  std::multiset<std::string> table;
  for (const Transition& t : TransitionTable()) {
    table.insert(StateName(t.from) + " " + EventName(t.event) + " " + StateName(t.to));
  }
  EXPECT_EQ(table, LinesOfPage());
}

TEST(JobFsm, OneTargetForEachStateAndEvent) {
  std::set<std::pair<int, int>> seen;
  for (const Transition& t : TransitionTable()) {
    EXPECT_TRUE(seen.insert({t.from, static_cast<int>(t.event)}).second)
        << StateName(t.from) << " " << EventName(t.event);
    EXPECT_FALSE(IsEnded(t.from)) << "an end has a way out: " << EventName(t.event);
  }
}

TEST(JobFsm, EveryLiveStateIsReachedAndCanEnd) {
  std::map<int, std::set<int>> next;
  for (const Transition& t : TransitionTable()) next[t.from].insert(t.to);
  auto reach = [&](int from) {
    std::set<int> seen{from}, todo{from};
    while (!todo.empty()) {
      const int s = *todo.begin();
      todo.erase(todo.begin());
      for (int n : next[s]) {
        if (seen.insert(n).second) todo.insert(n);
      }
    }
    return seen;
  };
  const std::set<int> from_queue = reach(v1::JOB_STATE_QUEUED);
  for (int s = v1::JOB_STATE_QUEUED; s <= v1::JOB_STATE_PREEMPTED; ++s) {
    EXPECT_TRUE(from_queue.count(s)) << StateName(static_cast<v1::JobState>(s));
    if (IsEnded(static_cast<v1::JobState>(s))) continue;
    EXPECT_TRUE(reach(s).count(v1::JOB_STATE_CANCELLED)) << StateName(static_cast<v1::JobState>(s));
    EXPECT_TRUE(reach(s).count(v1::JOB_STATE_FAILED)) << StateName(static_cast<v1::JobState>(s));
    EXPECT_TRUE(reach(s).count(v1::JOB_STATE_DONE)) << StateName(static_cast<v1::JobState>(s));
  }
}

TEST(JobFsm, RandomWalkStaysInTheTable) {
  std::mt19937_64 random(20240611);
  constexpr int kEvents = static_cast<int>(JobEvent::kEndPreempted) + 1;
  std::set<std::pair<int, int>> walked;
  for (int walk = 0; walk < 4000; ++walk) {
    v1::JobState state = v1::JOB_STATE_QUEUED;
    for (int step = 0; step < 40; ++step) {
      const auto event = static_cast<JobEvent>(random() % kEvents);
      const auto next = NextState(state, event);
      bool in_table = false;
      for (const Transition& t : TransitionTable()) {
        if (t.from == state && t.event == event) {
          in_table = true;
          ASSERT_TRUE(next.ok());
          ASSERT_EQ(*next, t.to);
          walked.insert({state, static_cast<int>(event)});
        }
      }
      if (!in_table) {
        ASSERT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
        continue;
      }
      // Nothing runs before it was placed, and only a job whose ranks all ended well is DONE.
      if (*next == v1::JOB_STATE_RUNNING) {
        ASSERT_EQ(state, v1::JOB_STATE_STARTING);
      }
      if (*next == v1::JOB_STATE_STARTING) {
        ASSERT_EQ(event, JobEvent::kPlaced);
      }
      if (*next == v1::JOB_STATE_DONE) {
        ASSERT_EQ(event, JobEvent::kEndDone);
      }
      state = *next;
    }
  }
  EXPECT_EQ(walked.size(), TransitionTable().size()) << "the walk did not take every line";
}

}  // namespace
}  // namespace holdfast::sched
