#include "cli/other_starts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rekindle/v1/copy_trouble.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

v1::Image Of(const std::string& mark, const std::string& start) {
  v1::Image image;
  image.set_reference("train:20261130-101500.250");
  auto& labels = *image.mutable_labels();
  labels[v1::kJobMarkLabel] = mark;
  labels[v1::kSupervisedLabel] = start;
  labels[v1::kSupervisedHostLabel] = "node-b";
  return image;
}

TEST(OtherStartsTest, OneOfTheSameJobIsTold) {
  const std::string told = TellsOfOtherStart(Of("train~1", "1000000000"), Of("train~1", "2000000000"));
  EXPECT_THAT(told, StartsWith(v1::kGoesOnElsewhere));
  for (const char* words : {"train:20261130-101500.250", "on node-b", "started 1970-01-01 00:00:02 UTC"})
    EXPECT_THAT(told, HasSubstr(words));
}

TEST(OtherStartsTest, OthersAreNot) {
  EXPECT_EQ(TellsOfOtherStart(Of("train~1", "1"), Of("train~1", "1")), "");
  EXPECT_EQ(TellsOfOtherStart(Of("train~1", "1"), Of("train~2", "2")), "");
  EXPECT_EQ(TellsOfOtherStart(Of("", "1"), Of("", "2")), "");
  v1::Image by_hand = Of("train~1", "2");
  by_hand.mutable_labels()->erase(v1::kSupervisedLabel);
  EXPECT_EQ(TellsOfOtherStart(Of("train~1", "1"), by_hand), "");
}

TEST(OtherStartsTest, WhatThisOneHasComeFromIsNot) {
  v1::Image ours = Of("train~1", "2"), there = Of("train~1", "1");
  (*ours.mutable_labels())[v1::kSupervisedNumberLabel] = "9";
  (*ours.mutable_labels())[v1::kSupervisedAncestorsLabel] = "1:5";
  (*there.mutable_labels())[v1::kSupervisedNumberLabel] = "5";
  EXPECT_EQ(TellsOfOtherStart(ours, there), "");
  (*there.mutable_labels())[v1::kSupervisedNumberLabel] = "6";
  EXPECT_NE(TellsOfOtherStart(ours, there), "") << "that start has gone on";
}

TEST(OtherStartsTest, WhatWasThereAtFirstIsNoNews) {
  OtherStarts starts;
  EXPECT_THAT(starts.Look({"b", "a"}, {"a"}), IsEmpty());
  EXPECT_THAT(starts.Look({"d", "c", "b", "a"}, {"a", "c"}), ElementsAre("d"));
  EXPECT_THAT(starts.Look({"d", "a"}, {"a", "c"}), IsEmpty());
}

TEST(OtherStartsTest, WhatWasToldIsOverOnceNothingHasComeSinceOurs) {
  OtherStarts starts;
  EXPECT_FALSE(starts.Note(Of("train~1", "1"), Of("other~1", "2")));
  EXPECT_TRUE(starts.Note(Of("train~1", "1"), Of("train~1", "2")));
  starts.Look({"b", "a"}, {"a"});
  EXPECT_THAT(starts.told(), HasSubstr("on node-b"));
  starts.Look({"c", "b", "a"}, {"a", "c"});
  EXPECT_EQ(starts.told(), "");
}

TEST(OtherStartsTest, AnImageOfJustBeforeIsWarnedOf) {
  v1::Image there = Of("train~1", "1");
  there.set_created_unix_ns(absl::ToUnixNanos(absl::FromUnixSeconds(1000)));
  const std::string told = WarnsOfLateImage(there, "/mnt/copies", absl::FromUnixSeconds(1012));
  for (const char* words : {"/mnt/copies", "train:20261130-101500.250", "on node-b", "12s ago"})
    EXPECT_THAT(told, HasSubstr(words));
  EXPECT_EQ(WarnsOfLateImage(there, "/mnt/copies", absl::FromUnixSeconds(10'000)), "");
}

}  // namespace
}  // namespace rekindle::cli
