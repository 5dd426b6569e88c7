#include "cli/resume_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

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

// Taken in from elsewhere.
v1::Image CameIn(v1::Image image) {
  (*image.mutable_labels())[v1::kOriginLabel] = image.digest();
  return image;
}

// The `number`th image of the start which was submitted then, before which there were others of the job.
v1::Image OfStart(v1::Image image, const std::string& submitted, int before, int number) {
  auto& labels = *image.mutable_labels();
  labels[v1::kSupervisedLabel] = submitted;
  if (before != 0) labels[v1::kSupervisedFirstLabel] = "1";
  labels[v1::kSupervisedNumberLabel] = absl::StrCat((static_cast<uint64_t>(before) << 32) + number);
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
  EXPECT_THAT(Points({Taken(14), Taken(13, /*damaged=*/true), Taken(12)}),
              ElementsAre("20261130-101400.123", "20261130-101300.123", "20261130-101200.123"));
  // Wherever it has come from since.
  EXPECT_THAT(Points({CameIn(Taken(13)), Taken(12)}),
              ElementsAre("20261130-101300.123", "20261130-101200.123"));
}

TEST(ResumePointsTest, AClockThatWasSetBackMakesNoImageOlder) {
  EXPECT_THAT(Points({Taken(11), Taken(10), Taken(14), Taken(13)}),
              ElementsAre("20261130-101100.123", "20261130-101000.123", "20261130-101400.123",
                          "20261130-101300.123"));
  // What came in before the last ones were taken is older than they are, whatever its clock said.
  EXPECT_THAT(Points({Taken(11), CameIn(Taken(14))}),
              ElementsAre("20261130-101100.123", "20261130-101400.123"));
}

TEST(ResumePointsTest, OfOneStartTheNumbersTellAndOfSeveralTheStore) {
  const v1::Image first = OfStart(Taken(10), "1", 7, 5), second = OfStart(Taken(30), "2", 1, 2),
                  third = OfStart(Taken(29), "2", 1, 3);
  EXPECT_THAT(Points({CameIn(second), CameIn(third), CameIn(first)}),
              ElementsAre("20261130-102900.123", "20261130-103000.123", "20261130-101000.123"));
  // Who went back has counted fewer starts.
  EXPECT_THAT(Points({third, second, first}),
              ElementsAre("20261130-102900.123", "20261130-103000.123", "20261130-101000.123"));
  // What has come of a start late is no newer than what came of it before.
  EXPECT_THAT(Points({CameIn(second), Taken(40), CameIn(third)}),
              ElementsAre("20261130-104000.123", "20261130-102900.123", "20261130-103000.123"));
}

// Whose start went on from such an image of another one.
v1::Image ComeFrom(v1::Image image, const std::string& ancestors) {
  (*image.mutable_labels())[v1::kSupervisedAncestorsLabel] = ancestors;
  return image;
}

TEST(ResumePointsTest, WhatDescendsFromAnImageIsNewer) {
  const v1::Image first = OfStart(Taken(40), "1", 0, 5),
                  second = ComeFrom(OfStart(Taken(20), "2", 1, 2), "1:5"),
                  third = ComeFrom(OfStart(Taken(30), "3", 2, 2), "2:4294967298,1:5"),
                  other_way = OfStart(Taken(10), "1", 0, 6);
  // In whatever order they came, and whatever their clocks say.
  for (const std::vector<v1::Image>& listed : {std::vector{CameIn(first), CameIn(second), CameIn(third)},
                                               std::vector{CameIn(first), third, CameIn(second)},
                                               std::vector{CameIn(second), CameIn(third), CameIn(first)}})
    EXPECT_THAT(Points(listed),
                ElementsAre("20261130-103000.123", "20261130-102000.123", "20261130-104000.123"));
  // What that start took later is no past of it.
  const auto points = ResumePoints({CameIn(other_way), CameIn(second), CameIn(first)});
  EXPECT_TRUE(absl::IsFailedPrecondition(points.status())) << points.status();
}

TEST(ResumePointsTest, OfTwoWaysNobodyTakesTheOneThatCameInLast) {
  const v1::Image further = OfStart(Taken(50), "1", 0, 12), base = OfStart(Taken(10), "1", 0, 9),
                  other = ComeFrom(OfStart(Taken(58), "2", 1, 3), "1:9");
  const auto points = ResumePoints({CameIn(other), further, base});
  EXPECT_TRUE(absl::IsFailedPrecondition(points.status())) << points.status();
  for (const char* words :
       {"each its own way", "job:20261130-105800.123", "job:20261130-105000.123", "once with --from"})
    EXPECT_THAT(std::string(points.status().message()), HasSubstr(words));
  // Who has gone on from one of them while the other one was here has chosen.
  const auto taken_by_start_at = [](int64_t unix_ns) {
    return ComeFrom(OfStart(Taken(59), absl::StrCat(unix_ns), 1, 2), "1:12");
  };
  const v1::Image chosen = taken_by_start_at(Taken(58).created_unix_ns());
  EXPECT_THAT(Points({chosen, CameIn(other), further, base}),
              ElementsAre("20261130-105900.123", "20261130-105800.123", "20261130-105000.123",
                          "20261130-101000.123"));
  // Who had begun before it came here has not.
  const auto unseen =
      ResumePoints({taken_by_start_at(Taken(58).created_unix_ns() - 1), CameIn(other), further, base});
  EXPECT_TRUE(absl::IsFailedPrecondition(unseen.status())) << unseen.status();
  // What can't be restored is no way to go.
  v1::Image damaged = further;
  damaged.set_damaged(true);
  EXPECT_THAT(Points({CameIn(other), damaged, base}), testing::SizeIs(3));
}

TEST(ResumePointsTest, WhereTheStoreAndTheLabelsDifferNobodyGuesses) {
  const v1::Image first = OfStart(Taken(10), "1", 0, 5),
                  second = ComeFrom(OfStart(Taken(20), "2", 1, 2), "1:5");
  const auto points = ResumePoints({first, second});
  EXPECT_TRUE(absl::IsFailedPrecondition(points.status())) << points.status();
}

TEST(ResumePointsTest, WhereTheStoreAndTheClocksDifferOfWhatCameInNobodyGuesses) {
  const auto points = ResumePoints({CameIn(Taken(13)), Taken(11), Taken(14)});
  EXPECT_TRUE(absl::IsFailedPrecondition(points.status())) << points.status();
  for (const char* words : {"job:20261130-101300.123", "job:20261130-101400.123", "--from"})
    EXPECT_THAT(std::string(points.status().message()), HasSubstr(words));
  EXPECT_THAT(Points({CameIn(Taken(15)), Taken(11), Taken(14)}),
              ElementsAre("20261130-101500.123", "20261130-101100.123", "20261130-101400.123"));
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
  EXPECT_THAT(Points({Taken(13), Named(Taken(11), "milestone", 12)}),
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
  EXPECT_THAT(Points({Named(Taken(12), "2", 12), Named(Taken(11), "1", 11)}), ElementsAre("2", "1"));
  EXPECT_THAT(Points({}), ElementsAre());
}

// What is newer than `here` of `there`, whose copies have come from elsewhere.
std::string Newer(const std::vector<v1::Image>& here, std::vector<v1::Image> there) {
  for (v1::Image& image : there) image = CameIn(std::move(image));
  const auto newer = NewerElsewhere(here, there, "/place");
  if (!newer.ok()) return std::string(newer.status().message());
  return *newer == nullptr ? "" : (*newer)->reference().substr(4);
}

TEST(ResumePointsTest, WhatIsElsewhereIsNewerIfItCameThereLater) {
  const std::vector<v1::Image> here = {Taken(12)};
  EXPECT_EQ(Newer(here, {Taken(12), Taken(11)}), "");
  EXPECT_EQ(Newer(here, {Taken(14, true), Taken(13), Named(Taken(11), "best", 50), Taken(11)}),
            "20261130-101300.123");
  EXPECT_EQ(Newer({Taken(13)}, {Taken(12), Taken(11)}), "");
  EXPECT_EQ(Newer({Named(Taken(13), "best", 13)}, {Taken(12)}), "");
  // The place knows in which order they came, whatever the clock of the other machine said.
  EXPECT_EQ(Newer(here, {Taken(10), Taken(12)}), "20261130-101000.123");
}

TEST(ResumePointsTest, OfWhatIsElsewhereTheNumbersOfOneStartTell) {
  const std::vector<v1::Image> here = {OfStart(Taken(30), "1", 0, 5)};
  EXPECT_EQ(Newer(here, {OfStart(Taken(10), "1", 0, 6)}), "20261130-101000.123");
  EXPECT_EQ(Newer(here, {OfStart(Taken(40), "1", 0, 4)}), "");
  // Of others they say nothing.
  EXPECT_EQ(Newer(here, {OfStart(Taken(40), "2", 0, 4)}), "20261130-104000.123");
  EXPECT_EQ(Newer(here, {OfStart(Taken(10), "2", 9, 4)}), "");
  // All are looked at.
  EXPECT_EQ(Newer(here, {OfStart(Taken(42), "1", 0, 4), Taken(41)}), "20261130-104100.123");
  EXPECT_EQ(Newer(here, {Taken(41), OfStart(Taken(40), "1", 0, 6)}), "20261130-104000.123");
}

TEST(ResumePointsTest, WhatWentAnotherWayElsewhereIsNobodysToChoose) {
  // A node that was cut off has run on, and another one has gone on from what it had copied before.
  const v1::Image further = OfStart(Taken(50), "1", 0, 12),
                  other = ComeFrom(OfStart(Taken(20), "2", 1, 3), "1:9"),
                  later = ComeFrom(OfStart(Taken(59), "2", 1, 4), "1:9");
  for (const v1::Image& there : {other, later}) {
    EXPECT_THAT(Newer({further}, {there}), HasSubstr("each its own way")) << there.reference();
    EXPECT_THAT(Newer({there}, {further}), HasSubstr("each its own way")) << there.reference();
  }
  EXPECT_THAT(Newer({further}, {ComeFrom(OfStart(Taken(20), "3", 2, 3), "2:4294967299,1:9")}),
              HasSubstr("each its own way"));
  EXPECT_EQ(Newer({further}, {ComeFrom(OfStart(Taken(20), "2", 1, 3), "4:9")}), "") << "nothing in common";
  // Whatever else is there, and in whatever order it came.
  EXPECT_THAT(Newer({further}, {further, other}), HasSubstr("each its own way"));
  EXPECT_THAT(Newer({further}, {other, further}), HasSubstr("each its own way"));
  const v1::Image base = OfStart(Taken(10), "1", 0, 9), last = OfStart(Taken(11), "1", 0, 10);
  EXPECT_THAT(Newer({base}, {further, other, base}), HasSubstr("each its own way")) << "both go on from it";
  EXPECT_THAT(Newer({last, base}, {other, base}), HasSubstr("each its own way"));
  const std::string told = Newer({further}, {other, later, further});
  for (const char* words : {"job:20261130-105900.123", "job:20261130-105000.123", "once with --from"})
    EXPECT_THAT(told, HasSubstr(words)) << "the last one of its way";
}

TEST(ResumePointsTest, WhoeverHasBothWaysHereHasChosen) {
  const v1::Image base = OfStart(Taken(10), "1", 0, 9), further = OfStart(Taken(50), "1", 0, 12),
                  other = ComeFrom(OfStart(Taken(20), "2", 1, 3), "1:9"),
                  later = ComeFrom(OfStart(Taken(21), "2", 1, 4), "1:9"),
                  chosen = ComeFrom(OfStart(Taken(59), "3", 1, 2), "1:12");
  EXPECT_EQ(Newer({chosen, CameIn(later), further, base}, {later, other, further, base}), "");
  EXPECT_THAT(Newer({chosen, CameIn(other), further, base}, {later, other, further, base}),
              HasSubstr("each its own way"))
      << "it has gone on since";
}

// Whoever started that knew of these images of other ways.
v1::Image HavingSeen(v1::Image image, const std::string& seen) {
  (*image.mutable_labels())[v1::kSupervisedSeenLabel] = seen;
  return image;
}

TEST(ResumePointsTest, WhatHasComeOfAChoiceComesBackUnasked) {
  const v1::Image uncopied = OfStart(Taken(20), "11", 0, 6),
                  chosen = CameIn(ComeFrom(OfStart(Taken(30), "22", 1, 20), "11:5")),
                  next = HavingSeen(ComeFrom(OfStart(Taken(40), "33", 2, 4), "22:4294967316,11:5"), "11:6"),
                  back = HavingSeen(
                      ComeFrom(OfStart(Taken(50), "44", 3, 9), "33:8589934596,22:4294967316,11:5"), "11:6");
  EXPECT_THAT(Points({CameIn(back), next, chosen, uncopied}),
              ElementsAre("20261130-105000.123", "20261130-104000.123", "20261130-103000.123",
                          "20261130-102000.123"));
  EXPECT_EQ(Newer({next, chosen, uncopied}, {back, chosen}), "20261130-105000.123");
  // In whatever order they come to another node.
  for (const std::vector<v1::Image>& listed :
       {std::vector{CameIn(uncopied), CameIn(back)}, std::vector{CameIn(back), CameIn(uncopied)}})
    EXPECT_THAT(Points(listed), ElementsAre("20261130-105000.123", "20261130-102000.123"));
  // What that way has done since nobody has seen.
  const v1::Image since = OfStart(Taken(55), "11", 0, 7);
  EXPECT_FALSE(ResumePoints({CameIn(since), CameIn(back)}).ok());
  EXPECT_THAT(Newer({back}, {since}), HasSubstr("each its own way"));
  EXPECT_THAT(Newer({back}, {ComeFrom(OfStart(Taken(55), "66", 1, 1), "11:6")}),
              HasSubstr("each its own way"));
}

TEST(ResumePointsTest, OnceGoneBackWhatCameAfterIsDecidedAgainstOnEveryNode) {
  const v1::Image failed = OfStart(Taken(40), "11", 0, 12), base = OfStart(Taken(30), "11", 0, 9),
                  back = HavingSeen(ComeFrom(OfStart(Taken(50), "22", 1, 5), "11:9"), "11:12");
  EXPECT_EQ(Newer({CameIn(back)}, {back, failed, base}), "") << "on a new one";
  EXPECT_EQ(Newer({back}, {back, failed, base}), "") << "where no image of the other way is left";
  EXPECT_EQ(Newer({back}, {failed, base, back}), "") << "whatever came there last";
  EXPECT_EQ(Newer({failed, base}, {back, failed}), "20261130-105000.123");
  const v1::Image without = ComeFrom(OfStart(Taken(50), "22", 1, 5), "11:9");
  EXPECT_THAT(Newer({without}, {failed, base}), HasSubstr("each its own way")) << "of earlier versions";
}

TEST(ResumePointsTest, WhatDescendsFromTheOneOfHereIsNewerElsewhere) {
  const v1::Image ours = OfStart(Taken(30), "1", 0, 5), before = OfStart(Taken(12), "1", 0, 3),
                  next = ComeFrom(OfStart(Taken(10), "2", 1, 2), "1:5"),
                  after_next = ComeFrom(OfStart(Taken(11), "3", 2, 2), "2:4294967298,1:5");
  EXPECT_EQ(Newer({ours}, {next}), "20261130-101000.123");
  EXPECT_EQ(Newer({ours}, {next, after_next, ours}), "20261130-101100.123") << "the last of them";
  EXPECT_EQ(Newer({next, ours}, {before, next}), "") << "a late copy";
  EXPECT_EQ(Newer({next}, {before}), "");
  EXPECT_EQ(Newer({ours, before}, {before, next}), "20261130-101000.123") << "behind a late copy";
  // It went on from an image before.
  for (const v1::Image& there : {ours, before}) {
    EXPECT_THAT(Newer({ours, before}, {ComeFrom(OfStart(Taken(31), "2", 1, 2), "1:4"), there}),
                HasSubstr("each its own way"));
  }
}

TEST(ResumePointsTest, WhatCameThereAfterAnOlderOneOfHereIsNotPassedOver) {
  const std::string told = Newer({Taken(30), Taken(10)}, {Taken(20), Taken(10)});
  for (const char* words :
       {"it can't be told", "job:20261130-102000.123", "job:20261130-103000.123", "--from"})
    EXPECT_THAT(told, HasSubstr(words));
  EXPECT_EQ(Newer({Taken(30), Taken(10)}, {Taken(10), Taken(9)}), "");
}

TEST(ResumePointsTest, WhereOnlyAWrongClockTellsOfElsewhereNobodyGuesses) {
  for (const std::string& told :
       {Newer({Taken(12), Taken(13)}, {Taken(14)}), Newer({Taken(12)}, {Taken(10), Taken(11)})})
    EXPECT_THAT(told, HasSubstr("it can't be told"));
}

TEST(ResumePointsTest, WhatAnotherUserHasUnderTheSameNamesIsNotNewer) {
  const auto of = [](v1::Image image, const std::string& job, uint32_t owner) {
    (*image.mutable_labels())[v1::kJobMarkLabel] = job;
    image.set_owner_uid(owner);
    return image;
  };
  const auto left = [](const std::vector<v1::Image>& here, std::vector<v1::Image> there) {
    DropOtherUsersImages(here, &there);
    return there.size();
  };
  const v1::Image ours = of(Taken(12), "1", 1000), theirs = of(Taken(14), "2", 2000);
  EXPECT_EQ(left({ours}, {theirs, ours}), 1);
  // That may be theirs as well: a start of it that began anew, another node's user, or not known.
  EXPECT_EQ(left({ours}, {of(Taken(14), "2", 1000), ours}), 2);
  EXPECT_EQ(left({ours}, {of(Taken(14), "1", 2000), ours}), 2);
  EXPECT_EQ(left({ours}, {of(Taken(14), "", 2000), ours}), 2);
  EXPECT_EQ(left({ours}, {theirs}), 1);
  EXPECT_EQ(left({}, {theirs}), 1);
}

TEST(ResumePointsTest, WithNothingHereAllThatIsElsewhereIsNewer) {
  EXPECT_EQ(Newer({}, {Named(Taken(11), "best", 50)}), "best");
  EXPECT_EQ(Newer({}, {}), "");
}

}  // namespace
}  // namespace rekindle::cli
