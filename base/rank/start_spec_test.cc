// SPDX-License-Identifier: Apache-2.0
#include "base/rank/start_spec.h"

#include <gtest/gtest.h>

#include <string>

namespace holdfast::rank {
namespace {

StartSpec Example() {
  StartSpec s;
  s.job = 42;
  s.attempt = 3;
  s.world_size = 4;
  s.cwd = "/home/u";
  s.uid = 1000;
  s.gid = 100;
  s.groups = {100, 44};
  s.log_dir = "/var/logs";
  s.log_limit_bytes = 1 << 20;
  s.service = {"/bin/holdfast-tcp-store", "--listen-fd", "3"};
  s.standby = {"python", "-u", "holdfast-standby.py", "auto", "train.py"};
  s.standby_after_ms = 2000;
  s.env = {"A=1", "EMPTY=", "WITH=a=b\nc"};
  s.ranks.push_back({2, 0, {"python", "train.py", ""}, {"RANK=2"}});
  s.ranks.push_back({3, 1, {"python"}, {"RANK=3"}});
  return s;
}

std::string Text(std::initializer_list<const char*> entries) {
  std::string text;
  for (const char* e : entries) text.append(e).push_back('\0');
  return text;
}

std::string ReasonFor(const std::string& text) {
  StartSpec out;
  std::string reason;
  EXPECT_FALSE(DecodeStartSpec(text, &out, &reason));
  EXPECT_FALSE(reason.empty());
  return reason;
}

TEST(StartSpecTest, ComesBackAsItWas) {
  const StartSpec s = Example();
  StartSpec out;
  std::string reason;
  ASSERT_TRUE(DecodeStartSpec(EncodeStartSpec(s), &out, &reason)) << reason;
  EXPECT_EQ(out.job, 42u);
  EXPECT_EQ(out.attempt, 3u);
  EXPECT_EQ(out.world_size, 4u);
  EXPECT_EQ(out.cwd, s.cwd);
  EXPECT_EQ(out.uid, 1000u);
  EXPECT_EQ(out.groups, s.groups);
  EXPECT_EQ(out.log_limit_bytes, s.log_limit_bytes);
  EXPECT_EQ(out.env, s.env);
  EXPECT_EQ(out.service, s.service);
  EXPECT_EQ(out.standby, s.standby);
  EXPECT_EQ(out.standby_after_ms, 2000u);
  ASSERT_EQ(out.ranks.size(), 2u);
  EXPECT_EQ(out.ranks[0].args, s.ranks[0].args);
  EXPECT_EQ(out.ranks[1].env, s.ranks[1].env);
  EXPECT_EQ(out.ranks[1].local, 1u);
  EXPECT_EQ(EncodeStartSpec(out), EncodeStartSpec(s));
}

TEST(StartSpecTest, AnEmbeddedNulCannotSmuggleAKey) {
  StartSpec s = Example();
  s.env.push_back(std::string("X=1\0uid=0", 9));
  EXPECT_EQ(EncodeStartSpec(s), "");
}

TEST(StartSpecTest, WrongEntriesAreNamed) {
  EXPECT_NE(ReasonFor(Text({"version=2"})).find("version=2"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "colour=red"})).find("colour=red"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "job=-1"})).find("job=-1"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "job=1x"})).find("job=1x"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "uid=4294967295"})).find("uid"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "cwd=relative"})).find("cwd"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "env==x"})).find("env"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "groups=1,,2"})).find("groups"), std::string::npos);
  EXPECT_NE(ReasonFor(Text({"version=1", "arg=x"})).find("arg=x"), std::string::npos);
  EXPECT_NE(ReasonFor("version=1").find("NUL"), std::string::npos);
  EXPECT_NE(ReasonFor("").find("version"), std::string::npos);
}

TEST(StartSpecTest, IncompleteOrContradictorySpecsAreNamed) {
  StartSpec s = Example();
  s.ranks[1].rank = 2;
  EXPECT_NE(ReasonFor(EncodeStartSpec(s)).find("rank=2"), std::string::npos);
  s = Example();
  s.ranks[1].rank = 4;
  EXPECT_NE(ReasonFor(EncodeStartSpec(s)).find("world_size=4"), std::string::npos);
  s = Example();
  s.ranks[0].args.clear();
  EXPECT_NE(ReasonFor(EncodeStartSpec(s)).find("arg"), std::string::npos);
  s = Example();
  s.ranks.clear();
  EXPECT_NE(ReasonFor(EncodeStartSpec(s)).find("rank"), std::string::npos);
  s = Example();
  for (uint32_t r = 0; r < 65; ++r) s.ranks.push_back({r, r, {"x"}, {}});
  s.world_size = 100;
  ReasonFor(EncodeStartSpec(s));
}

TEST(StartSpecTest, EveryTruncationIsRefused) {
  StartSpec s = Example();
  s.ranks.pop_back();
  s.ranks[0].args = {"python"};
  const std::string whole = EncodeStartSpec(s);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) ReasonFor(whole.substr(0, bytes));
  ReasonFor(std::string(kStartSpecBytesMax + 1, 'x'));
}

}  // namespace
}  // namespace holdfast::rank
