// SPDX-License-Identifier: Apache-2.0
#include "proto/modes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::proto {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(Modes, OneWordIsForAllCauses) {
  EXPECT_THAT(*ParseModes("act"), UnorderedElementsAre(Pair("hang", v1::CAUSE_MODE_ACT),
                                                       Pair("stopped", v1::CAUSE_MODE_ACT)));
  EXPECT_THAT(*ParseModes("observe"),
              UnorderedElementsAre(Pair("hang", v1::CAUSE_MODE_OBSERVE),
                                   Pair("stopped", v1::CAUSE_MODE_OBSERVE)));
}

TEST(Modes, CausesAreNamedOneByOne) {
  EXPECT_THAT(*ParseModes("hang=act"), UnorderedElementsAre(Pair("hang", v1::CAUSE_MODE_ACT)));
  EXPECT_THAT(*ParseModes("hang=act, stopped=observe"),
              UnorderedElementsAre(Pair("hang", v1::CAUSE_MODE_ACT),
                                   Pair("stopped", v1::CAUSE_MODE_OBSERVE)));
}

TEST(Modes, WhatIsNotAllowedIsQuotedWithWhatIs) {
  for (const char* text : {"", "on", "hang", "hang=on", "slow=act", "hang=act=act", "hang=act,",
                           "hang=act,hang=observe", "hang=\x01"}) {
    const auto modes = ParseModes(text);
    ASSERT_FALSE(modes.ok()) << text;
    EXPECT_THAT(std::string(modes.status().message()), HasSubstr("CAUSE=MODE")) << text;
  }
}

TEST(Modes, TheJobsWordThenTheClustersThenTheDefault) {
  v1::JobSpec spec;
  EXPECT_EQ(EffectiveMode(spec, {}, kCauseHang), v1::CAUSE_MODE_OBSERVE);
  EXPECT_EQ(EffectiveMode(spec, {}, kCauseStopped), v1::CAUSE_MODE_ACT);
  const Modes cluster = {{"hang", v1::CAUSE_MODE_ACT}, {"stopped", v1::CAUSE_MODE_OBSERVE}};
  EXPECT_EQ(EffectiveMode(spec, cluster, kCauseHang), v1::CAUSE_MODE_ACT);
  EXPECT_EQ(EffectiveMode(spec, cluster, kCauseStopped), v1::CAUSE_MODE_OBSERVE);
  (*spec.mutable_modes())["stopped"] = v1::CAUSE_MODE_ACT;
  EXPECT_EQ(EffectiveMode(spec, cluster, kCauseStopped), v1::CAUSE_MODE_ACT);
}

TEST(Modes, AFieldOfAnotherVersionIsRefused) {
  v1::JobSpec spec;
  (*spec.mutable_modes())["slow"] = v1::CAUSE_MODE_ACT;
  EXPECT_THAT(std::string(CheckModes(spec.modes()).message()), HasSubstr("slow"));
  spec.clear_modes();
  (*spec.mutable_modes())["hang"] = v1::CAUSE_MODE_UNSPECIFIED;
  EXPECT_THAT(std::string(CheckModes(spec.modes()).message()), HasSubstr("hang: 0"));
  (*spec.mutable_modes())["hang"] = v1::CAUSE_MODE_ACT;
  EXPECT_TRUE(CheckModes(spec.modes()).ok());
}

}  // namespace
}  // namespace holdfast::proto
