#include "cli/image_descent.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cli/job_way.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

v1::Image ImageOfStart(const std::string& start, uint64_t number, const std::string& ancestors = "") {
  v1::Image image;
  auto& labels = *image.mutable_labels();
  labels[v1::kJobMarkLabel] = "job~1";
  labels[v1::kSupervisedLabel] = start;
  labels[v1::kSupervisedNumberLabel] = absl::StrCat(number);
  if (!ancestors.empty()) labels[v1::kSupervisedAncestorsLabel] = ancestors;
  return image;
}

TEST(ImageDescentTest, WhatComesOfAnImageIsLater) {
  const v1::Image first = ImageOfStart("1", 5), second = ImageOfStart("2", 9, "1:5");
  EXPECT_EQ(IsLaterByLabels(second, first), true);
  EXPECT_EQ(IsLaterByLabels(first, second), false);
  EXPECT_EQ(IsLaterByLabels(ImageOfStart("3", 12, "2:9,1:5"), first), true);
  EXPECT_EQ(IsLaterByLabels(ImageOfStart("1", 4), second), false);
  EXPECT_EQ(IsLaterByLabels(ImageOfStart("1", 6), first), true);
}

TEST(ImageDescentTest, OfTwoWaysNothingIsKnown) {
  const v1::Image second = ImageOfStart("2", 9, "1:5");
  for (const v1::Image& other : {ImageOfStart("1", 6), ImageOfStart("3", 9, "1:5"), ImageOfStart("4", 1),
                                 ImageOfStart("2", 9), ImageOfStart("", 1), v1::Image()}) {
    EXPECT_EQ(IsLaterByLabels(second, other), std::nullopt) << other.ShortDebugString();
    EXPECT_EQ(IsLaterByLabels(other, second), std::nullopt) << other.ShortDebugString();
  }
}

TEST(ImageDescentTest, WhatHasComeOfOneStartOnlyGoesOneWayWhereOneHasComeOfTheOther) {
  const v1::Image second = ImageOfStart("2", 9, "1:5"), beside = ImageOfStart("1", 6),
                  third = ImageOfStart("3", 9, "1:4"), same_image = ImageOfStart("4", 9, "1:5");
  for (const v1::Image& other : {beside, third, same_image, ImageOfStart("5", 12, "3:9,1:4")}) {
    EXPECT_TRUE(JobWay(second).WentAnotherWayThan(JobWay(other))) << other.ShortDebugString();
    EXPECT_TRUE(JobWay(other).WentAnotherWayThan(JobWay(second))) << other.ShortDebugString();
  }
  for (const v1::Image& other :
       {ImageOfStart("1", 5), ImageOfStart("3", 12, "2:9,1:5"), ImageOfStart("2", 10, "1:5"), second,
        ImageOfStart("6", 1), ImageOfStart("7", 3, "6:1"), ImageOfStart("", 1), v1::Image()}) {
    EXPECT_FALSE(JobWay(second).WentAnotherWayThan(JobWay(other))) << other.ShortDebugString();
    EXPECT_FALSE(JobWay(other).WentAnotherWayThan(JobWay(second))) << other.ShortDebugString();
  }
}

TEST(ImageDescentTest, OfEarlierStartsTheNewestStay) {
  v1::Image damaged = ImageOfStart("2", 12);
  damaged.set_damaged(true);
  const auto numbers = [&](size_t keep) {
    std::string going;
    for (const v1::Image& image : BeyondKeptOfEarlier({ImageOfStart("1", 7), ImageOfStart("2", 11),
                                                       ImageOfStart("1", 9), damaged, ImageOfStart("1", 8)},
                                                      keep))
      absl::StrAppend(&going, image.labels().at(v1::kSupervisedNumberLabel), " ");
    return going;
  };
  EXPECT_EQ(numbers(3), "12 7 ");
  EXPECT_EQ(numbers(1), "12 7 8 ") << "the last one alone may hold a failure";
  EXPECT_EQ(numbers(9), "");
}

TEST(ImageDescentTest, OfWhatTheLastOneSaysIsSoundTheNewestThatIsWholeStays) {
  std::vector<v1::Image> copies = {
      ImageOfStart("2", 13), ImageOfStart("2", 12), ImageOfStart("1", 7), ImageOfStart("1", 8),
      ImageOfStart("1", 9),  ImageOfStart("3", 8),  v1::Image()};
  const auto staying = [&](const std::string& label) {
    v1::Image last = ImageOfStart("2", 14, "1:9");
    if (!label.empty()) (*last.mutable_labels())[v1::kSupervisedSoundLabel] = label;
    std::string numbers;
    for (const v1::Image& image : CopiesToGoBackTo(copies, last))
      absl::StrAppend(&numbers, image.labels().at(v1::kSupervisedNumberLabel), " ");
    return numbers;
  };
  EXPECT_EQ(staying(""), "") << "as earlier versions have taken it";
  EXPECT_EQ(staying("1:6-8"), "8 12 ") << "and the next that will be";
  copies[3].set_damaged(true);
  EXPECT_EQ(staying("1:6-8"), "7 12 ");
  EXPECT_EQ(staying("2:10-12,1:6-8"), "12 13 ");
  EXPECT_EQ(staying("2:10-13,1:6-8"), "13 ");
  copies.push_back(ImageOfStart("2", 15));
  EXPECT_EQ(staying("2:10-13,1:6-8"), "13 ") << "a later one is not of its past";
  copies.push_back(ImageOfStart("2", 11));
  (*copies.back().mutable_labels())[v1::kSupervisedAskedLabel] = "yes";
  EXPECT_EQ(staying("1:6-8"), "7 12 ") << "what somebody has asked for may go at any time";
}

TEST(ImageDescentTest, WhatSomebodyWantsIsNoPastOfAnother) {
  const v1::Image second = ImageOfStart("2", 9, "1:5");
  EXPECT_TRUE(IsInPastOf(ImageOfStart("1", 5), second));
  EXPECT_FALSE(IsInPastOf(ImageOfStart("1", 6), second));
  for (const char* label : {v1::kSupervisedAskedLabel, v1::kGroupIdLabel}) {
    v1::Image wanted = ImageOfStart("1", 5);
    (*wanted.mutable_labels())[label] = "yes";
    EXPECT_FALSE(IsInPastOf(wanted, second)) << label;
  }
  v1::Image other_job = ImageOfStart("1", 5);
  (*other_job.mutable_labels())[v1::kJobMarkLabel] = "other~1";
  EXPECT_FALSE(IsInPastOf(other_job, second));
  // Which has gone on from an image of a job of another name.
  v1::Image other_name = second;
  (*other_name.mutable_labels())[v1::kJobNameLabel] = "exp";
  EXPECT_FALSE(IsInPastOf(ImageOfStart("1", 5), other_name));
  EXPECT_FALSE(IsOfEarlierStart(ImageOfStart("1", 5), other_name));
  EXPECT_TRUE(IsOfEarlierStart(ImageOfStart("1", 5), second));
  EXPECT_FALSE(IsOfEarlierStart(ImageOfStart("2", 8, "1:5"), second));
}

}  // namespace
}  // namespace rekindle::cli
