#include "base/job_descent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(JobDescentTest, EachStartHasThoseOfTheImageThatItGoesOnFrom) {
  const std::string second = AncestorsOfNext("100", 7, "");
  EXPECT_EQ(second, "100:7");
  const std::string third = AncestorsOfNext("200", 9, second);
  EXPECT_EQ(third, "200:9,100:7");
  EXPECT_THAT(ParseAncestors(third), ElementsAre(Pair("100", 7), Pair("200", 9)));
}

TEST(JobDescentTest, UpToTheImageThatWasGoneOnFromAllIsPast) {
  EXPECT_TRUE(IsInPast("200:9,100:7", "100", 7));
  EXPECT_TRUE(IsInPast("200:9,100:7", "200", 1));
  EXPECT_FALSE(IsInPast("200:9,100:7", "100", 8)) << "it went another way";
  EXPECT_FALSE(IsInPast("200:9,100:7", "300", 1));
  EXPECT_FALSE(IsInPast("", "100", 1));
}

TEST(JobDescentTest, TheFarthestAreLeftOut) {
  std::string ancestors;
  for (int start = 1; start <= 1000; ++start) ancestors = AncestorsOfNext(absl::StrCat(start), 1, ancestors);
  EXPECT_TRUE(IsInPast(ancestors, "1000", 1));
  EXPECT_TRUE(IsInPast(ancestors, "937", 1));
  EXPECT_FALSE(IsInPast(ancestors, "936", 1));
}

TEST(JobDescentTest, WhatCanNotBeUnderstoodSaysNothing) {
  EXPECT_EQ(AncestorsOfNext("", 7, "100:7"), "");
  EXPECT_EQ(AncestorsOfNext("1,2:3", 7, "100:7"), "");
  EXPECT_EQ(AncestorsOfNext("200", 9, "100:7,x,50:1"), "200:9,100:7");
  for (const char* label : {"100", "100:", ":7", "100:-7", "100:7:8", "a:7", " "})
    EXPECT_THAT(ParseAncestors(label), IsEmpty()) << label;
  EXPECT_THAT(ParseAncestors("100:7,100:9"), ElementsAre(Pair("100", 7))) << "the nearest counts";
}

}  // namespace
}  // namespace rekindle
