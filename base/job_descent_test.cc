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

TEST(SoundStretchTest, WhatIsWrittenIsRead) {
  const std::vector<SoundStretch> stretches = {{"200", 9, 12}, {"200", 3, 3}, {"100", 1, 7}};
  EXPECT_EQ(SoundText(stretches), "200:9-12,200:3-3,100:1-7");
  EXPECT_EQ(ParseSound(SoundText(stretches)), stretches);
}

TEST(SoundStretchTest, TheNewestOfTheNewestStretchThatHasAnyIsSound) {
  const std::vector<SoundStretch> stretches = {{"200", 9, 12}, {"100", 2, 7}};
  const NumberInStart none, other{"150", 10}, before{"200", 8}, after{"200", 13}, too_old{"100", 1};
  EXPECT_EQ(NewestSound(stretches, {none, other, before, after, too_old}), std::nullopt);
  EXPECT_EQ(NewestSound(stretches, {after, {"100", 2}, {"100", 7}, {"100", 3}}), 2u);
  EXPECT_EQ(NewestSound(stretches, {{"100", 7}, {"200", 9}, after}), 1u);
  EXPECT_EQ(NewestSound(stretches, {{"200", 12}, {"200", 9}, after}), 0u);
  EXPECT_EQ(NewestSound({}, {{"", 0}}), std::nullopt);
}

TEST(SeenTest, OnlySoManyOfThoseSubmittedLast) {
  StartsBefore known = {{"", 1}, {"forged", 1}};
  for (uint64_t start = 1; start <= 1000; ++start) known[absl::StrCat(start)] = 7;
  const std::string text = SeenOfNext(known, "1000:7,999:6", "998:9,997:3,x");
  EXPECT_EQ(text.substr(0, 20), "999:7,998:9,997:7,99");
  EXPECT_EQ(ParseAncestors(text).size(), 64u);
}

TEST(SoundStretchTest, TheOldestAreLeftOut) {
  std::vector<SoundStretch> stretches;
  for (uint64_t number = 1000; number > 0; --number) stretches.push_back({"100", 2 * number, 2 * number});
  std::string text = SoundText(stretches);
  const std::vector<SoundStretch> kept(stretches.begin(), stretches.begin() + 16);
  EXPECT_EQ(ParseSound(text), kept);
  text += ",100:1-1";
  EXPECT_EQ(ParseSound(text), kept) << "whoever wrote it";
}

TEST(SoundStretchTest, WhatCanNotBeUnderstoodSaysNothing) {
  EXPECT_EQ(ParseSound("200:9-12,x,100:1-7"), (std::vector<SoundStretch>{{"200", 9, 12}}));
  for (const char* label : {"", "100", "100:", "100:7", "100:7-", "100:-7", "100:7-6", "100:7-8-9", ":1-2",
                            "a:1-2", "100:1-18446744073709551616"})
    EXPECT_THAT(ParseSound(label), IsEmpty()) << label;
}

TEST(SoundStretchTest, WhatCameAfterTheImageThatWasGoneBackToIsCutOff) {
  std::vector<SoundStretch> stretches = {{"200", 9, 12}, {"200", 3, 6}, {"200", 1, 1}, {"100", 1, 7}};
  CutOffAfter("200", 5, &stretches);
  EXPECT_EQ(SoundText(stretches), "200:3-5,200:1-1,100:1-7");
  CutOffAfter("200", 0, &stretches);
  EXPECT_EQ(SoundText(stretches), "100:1-7");
}

}  // namespace
}  // namespace rekindle
