#include "cli/resume_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of the supervisor, taken in this minute.
v1::Image Taken(int minute, bool damaged = false) {
  v1::Image image;
  image.set_reference(absl::StrCat("job:20261130-10", minute, "00.123"));
  image.set_digest(absl::StrCat("sha256:", minute));
  absl::Time time;
  EXPECT_TRUE(
      absl::ParseTime(absl::RFC3339_full, absl::StrCat("2026-11-30T10:", minute, ":01Z"), &time, nullptr));
  image.set_created_unix_ns(absl::ToUnixNanos(time));
  image.set_damaged(damaged);
  return image;
}

// The same under another name, which it got in that minute.
v1::Image Named(v1::Image image, const std::string& tag, int minute) {
  image.set_reference("job:" + tag);
  image.set_created_unix_ns(Taken(minute).created_unix_ns());
  return image;
}

std::vector<std::string> Points(std::vector<v1::Image> images) {
  const auto points = ResumePoints(std::move(images));
  EXPECT_TRUE(points.ok()) << points.status();
  std::vector<std::string> tags;
  for (const v1::Image& image : *points) tags.push_back(image.reference().substr(4));
  return tags;
}

TEST(ResumePointsTest, TagsOfTheSupervisorAreTimes) {
  EXPECT_EQ(TimeOfTag("job:20261130-101500.250"),
            absl::FromCivil(absl::CivilSecond(2026, 11, 30, 10, 15, 0), absl::UTCTimeZone()) +
                absl::Milliseconds(250));
  for (const char* other : {"job:best", "job:20261130-101500", "job:20261130-101500.2500",
                            "job:20261330-101500.250", "job", "job:2026113a-101500.250"})
    EXPECT_EQ(TimeOfTag(other), std::nullopt) << other;
}

TEST(ResumePointsTest, TheNewestIsWhatWasTakenLast) {
  EXPECT_THAT(Points({Taken(12), Taken(14), Taken(13, /*damaged=*/true)}),
              ElementsAre("20261130-101400.123", "20261130-101300.123", "20261130-101200.123"));
  // Wherever it has come from since.
  v1::Image copied = Taken(11);
  copied.set_created_unix_ns(Taken(59).created_unix_ns());
  EXPECT_THAT(Points({copied, Taken(12)}), ElementsAre("20261130-101200.123", "20261130-101100.123"));
}

TEST(ResumePointsTest, ANameThatWasGivenLaterMakesNoImageNewer) {
  EXPECT_THAT(Points({Named(Taken(11), "milestone", 30), Taken(12), Taken(11)}),
              ElementsAre("20261130-101200.123", "20261130-101100.123"));
}

TEST(ResumePointsTest, WhereItCanNotBeToldNobodyGuesses) {
  const auto points = ResumePoints({Named(Taken(11), "milestone", 30), Taken(12)});
  EXPECT_TRUE(absl::IsFailedPrecondition(points.status())) << points.status();
  for (const char* words : {"job:milestone", "job:20261130-101200.123", "--from"})
    EXPECT_THAT(std::string(points.status().message()), HasSubstr(words));
  // An older one is in nobody's way.
  EXPECT_THAT(Points({Named(Taken(11), "milestone", 12), Taken(13)}),
              ElementsAre("20261130-101300.123", "milestone"));
}

TEST(ResumePointsTest, OfOneThatSomebodyTookOfTheSupervisedJobTheTimeIsKnown) {
  v1::Image asked = Named(Taken(14), "asked", 14);
  (*asked.mutable_labels())[v1::kSupervisedNumberLabel] = "7";
  EXPECT_THAT(Points({asked, Taken(12)}), ElementsAre("asked", "20261130-101200.123"));
  // Unless it has come from elsewhere since.
  (*asked.mutable_labels())[v1::kOriginLabel] = "sha256:1";
  EXPECT_FALSE(ResumePoints({asked, Taken(12)}).ok());
}

TEST(ResumePointsTest, WithoutASupervisorTheListTells) {
  EXPECT_THAT(Points({Named(Taken(11), "1", 11), Named(Taken(12), "2", 12)}), ElementsAre("2", "1"));
  EXPECT_THAT(Points({}), ElementsAre());
}

TEST(ResumePointsTest, WhatIsElsewhereIsNewerByItsTime) {
  const std::vector<v1::Image> here = {Taken(12)};
  EXPECT_EQ(NewerElsewhere(here, {Taken(12), Taken(11)}), nullptr);
  const std::vector<v1::Image> there = {Named(Taken(11), "best", 50), Taken(11), Taken(13), Taken(14, true)};
  const v1::Image* newer = NewerElsewhere(here, there);
  ASSERT_NE(newer, nullptr);
  EXPECT_EQ(newer->reference(), Taken(13).reference());
  EXPECT_EQ(NewerElsewhere({Taken(13)}, there), nullptr);
  EXPECT_EQ(NewerElsewhere({Named(Taken(13), "best", 13)}, {Taken(12)}), nullptr);
}

TEST(ResumePointsTest, WithNothingHereAllThatIsElsewhereIsNewer) {
  const std::vector<v1::Image> there = {Named(Taken(11), "best", 50)};
  EXPECT_EQ(NewerElsewhere({}, there), &there[0]);
  EXPECT_EQ(NewerElsewhere({}, {}), nullptr);
}

}  // namespace
}  // namespace rekindle::cli
