#include "cli/image_descent.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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
}

}  // namespace
}  // namespace rekindle::cli
