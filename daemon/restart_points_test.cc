#include "daemon/restart_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kPointSecond = 1'000'000'000;

v1::RestartPoint PointOf(const std::string& image, uint64_t number = 0, int64_t taken_ns = kPointSecond,
                         bool ours = true) {
  v1::RestartPoint point;
  point.set_image(image);
  point.set_digest(absl::StrCat("sha256:", image));
  point.set_number(number);
  point.set_taken_ns(taken_ns);
  point.set_ours(ours);
  return point;
}

template <typename Points>
std::vector<std::string> ImageNames(const Points& points) {
  std::vector<std::string> names;
  for (const v1::RestartPoint& point : points) names.push_back(point.image());
  return names;
}

class RestartPointsTest : public ::testing::Test {
 protected:
  v1::SupervisedJobRecord record_;
  RestartPoints points_{&record_};
};

TEST_F(RestartPointsTest, AnImageGetsTheNumberThatItWasGivenWhileItWasTaken) {
  points_.BeginTaking("job:a");
  EXPECT_TRUE(points_.IsTaking());
  EXPECT_EQ(points_.taking_number(), 1u);
  points_.TakingIsFrozen(5 * kPointSecond);
  // Another call's has come meanwhile, and is there first.
  points_.Add(PointOf("job:other"), /*silent=*/true);
  points_.Add(PointOf("job:a", 0, 9 * kPointSecond), /*silent=*/false);
  points_.EndTaking();
  EXPECT_FALSE(points_.IsTaking());
  EXPECT_THAT(ImageNames(record_.points()), ElementsAre("job:a", "job:other"));
  EXPECT_EQ(record_.points(0).taken_ns(), 5 * kPointSecond) << "the job stood still then";
  EXPECT_TRUE(record_.had_points());
  EXPECT_TRUE(record_.image_in_life());
  EXPECT_TRUE(points_.IsSilent("sha256:job:other"));
  EXPECT_FALSE(points_.IsSilent("sha256:job:a"));
}

TEST_F(RestartPointsTest, ANameIsThatOfItsLastImage) {
  points_.Add(PointOf("job:a"), false);
  points_.Add(PointOf("job:b"), false);
  points_.Add(PointOf("job:a"), false);
  EXPECT_THAT(ImageNames(record_.points()), ElementsAre("job:b", "job:a"));
  points_.Remove("job:b");
  EXPECT_THAT(ImageNames(record_.points()), ElementsAre("job:a"));
}

TEST_F(RestartPointsTest, EachIsNewOnce) {
  EXPECT_TRUE(points_.AnyNew()) << "it may have begun with one";
  EXPECT_FALSE(points_.AnyNew());
  points_.Add(PointOf("job:a"), false);
  EXPECT_TRUE(points_.AnyNew());
  EXPECT_FALSE(points_.AnyNew());
}

TEST_F(RestartPointsTest, WhatTheStoreHasIsWhatThereIs) {
  record_.set_uid(1000);
  record_.set_submitted_unix_ns(77);
  for (const char* image : {"job:gone", "job:retaken", "job:there"}) points_.Add(PointOf(image), false);
  const auto stored = [](const std::string& reference, const std::string& digest) {
    store::ImageInfo info;
    info.reference = reference;
    info.digest = digest;
    info.owner = 1000;
    return info;
  };
  store::ImageInfo unrecorded = stored("job:unrecorded", "sha256:u");
  unrecorded.labels = {{v1::kSupervisedLabel, "77"}, {v1::kSupervisedNumberLabel, "9"}};
  store::ImageInfo asked = unrecorded;
  asked.reference = "job:asked";
  asked.labels[v1::kSupervisedNumberLabel] = "12";
  asked.labels[v1::kSupervisedAskedLabel] = "yes";
  store::ImageInfo of_other = unrecorded;
  of_other.reference = "job:other";
  of_other.owner = 1001;
  store::ImageInfo of_earlier = unrecorded;
  of_earlier.reference = "job:earlier";
  of_earlier.labels[v1::kSupervisedLabel] = "76";
  const std::vector<std::string> found =
      points_.Find({stored("job:there", "sha256:job:there"), stored("job:retaken", "sha256:another"), asked,
                    unrecorded, of_other, of_earlier},
                   /*same_boot=*/false);
  EXPECT_THAT(found, UnorderedElementsAre("job:asked", "job:unrecorded"));
  EXPECT_THAT(ImageNames(record_.points()), ElementsAre("job:there", "job:unrecorded", "job:asked"));
  EXPECT_TRUE(record_.points(1).ours());
  EXPECT_FALSE(record_.points(2).ours());
  EXPECT_FALSE(record_.points(0).may_hold_death());
  EXPECT_TRUE(record_.points(1).may_hold_death()) << "when it was taken is not known";
  EXPECT_EQ(record_.last_number(), 12u);
  points_.WasTaken("job:unrecorded", 5);
  EXPECT_EQ(record_.points(1).taken_unix_ns(), 5);
  EXPECT_NE(record_.points(2).taken_unix_ns(), 5);
}

// Of a job "job" that was submitted first at 77, the images of its starts.
class EarlierStartsTest : public RestartPointsTest {
 protected:
  // Of the third start, after two others.
  static constexpr uint64_t kStart = uint64_t{2} << 32, kLast = kStart - 1000;

  EarlierStartsTest() {
    record_.set_name("job");
    record_.set_uid(1000);
    record_.set_submitted_unix_ns(99);
    record_.set_first_submitted_unix_ns(77);
    record_.mutable_policy()->set_keep_images(2);
  }

  static store::ImageInfo OfStart(const std::string& tag, const char* start, uint64_t number) {
    store::ImageInfo info;
    info.reference = "job:" + tag;
    info.digest = "sha256:" + info.reference;
    info.owner = 1000;
    info.labels = {{v1::kSupervisedLabel, start},
                   {v1::kJobNameLabel, "job"},
                   {v1::kSupervisedNumberLabel, absl::StrCat(number)}};
    if (std::string(start) != "77") info.labels[v1::kSupervisedFirstLabel] = "77";
    return info;
  }
  // As the store lists them, with one of each that is not to go.
  static std::vector<store::ImageInfo> Stored() {
    store::ImageInfo asked = OfStart("asked", "88", kLast - 3), taken_in = OfStart("in", "88", kLast - 4),
                     tagged = OfStart("tagged", "88", kLast - 5),
                     other_owner = OfStart("owner", "88", kLast - 6),
                     other_job = OfStart("other", "88", kLast - 7),
                     other_images = OfStart("else", "88", kLast - 9);
    asked.labels[v1::kSupervisedAskedLabel] = "yes";
    taken_in.labels[v1::kOriginLabel] = "sha256:x";
    tagged.labels = {{v1::kJobNameLabel, "job"}};
    other_owner.owner = 1001;
    other_job.labels[v1::kJobNameLabel] = "other";
    other_images.reference = "other:else";
    return {OfStart("own", "99", kStart + 1),
            OfStart("passed-over", "88", kLast + 1),
            OfStart("begun-with", "88", kLast),
            OfStart("b", "88", kLast - 1),
            OfStart("another-way", "66", kLast - 2),
            asked,
            taken_in,
            tagged,
            other_owner,
            other_job,
            other_images,
            OfStart("a", "88", kLast - 8),
            OfStart("first-went-on", "77", 5),
            OfStart("first-last", "77", 4),
            OfStart("first", "77", 1)};
  }
  void BeginWith(const std::string& image) {
    points_.Add(PointOf(image, kLast), false);
    record_.set_last_number(kStart);
  }
};

TEST_F(EarlierStartsTest, AllThatLiesInThePastIsTheJobsOwn) {
  record_.set_ancestors(absl::StrCat("88:", kLast, ",77:4"));
  BeginWith("job:begun-with");
  points_.Add(PointOf("job:own"), false);
  EXPECT_THAT(ImageNames(points_.OfEarlierStarts(Stored())),
              ElementsAre("job:first", "job:first-last", "job:a", "job:b"));
  // Also the one that it has begun with, where that is none any more that it goes back to.
  points_.Remove("job:begun-with");
  EXPECT_THAT(ImageNames(points_.OfEarlierStarts(Stored())),
              ElementsAre("job:first", "job:first-last", "job:a", "job:b", "job:begun-with"));
}

TEST_F(EarlierStartsTest, WhatItCanGoOnFromStaysUntilAnImageOfItsOwnIsOldEnough) {
  record_.set_ancestors(absl::StrCat("88:", kLast, ",77:4"));
  record_.mutable_policy()->set_keep_images(1);
  BeginWith("job:begun-with");
  const auto superfluous = [&](bool make_room, int64_t sound_before_ns) {
    return ImageNames(points_.Superfluous(make_room, sound_before_ns));
  };
  EXPECT_THAT(superfluous(/*make_room=*/true, INT64_MAX), IsEmpty()) << "it is all there is";
  for (int i = 1; i <= 2; ++i) points_.Add(PointOf(absl::StrCat("job:own-", i), 0, 9 * kPointSecond), false);
  EXPECT_THAT(superfluous(/*make_room=*/true, 5 * kPointSecond), IsEmpty());
  EXPECT_THAT(superfluous(/*make_room=*/false, 9 * kPointSecond), ElementsAre("job:begun-with", "job:own-1"));
}

TEST_F(EarlierStartsTest, NoImageOfAnEarlierStartHasANumberOfThisOne) {
  record_.set_ancestors("88:18446744073709551615");
  BeginWith("job:begun-with");
  EXPECT_THAT(
      ImageNames(points_.OfEarlierStarts({OfStart("forged", "88", kStart + 1), OfStart("a", "88", 1)})),
      ElementsAre("job:a"));
}

TEST_F(EarlierStartsTest, ARecordOfAnEarlierVersionKnowsTheStartBeforeAlone) {
  BeginWith("job:begun-with");
  points_.Add(PointOf("job:own"), false);
  EXPECT_THAT(ImageNames(points_.OfEarlierStarts(Stored())), ElementsAre("job:a", "job:b"));
  points_.Remove("job:begun-with");
  EXPECT_THAT(points_.OfEarlierStarts(Stored()), IsEmpty());
}

TEST_F(EarlierStartsTest, WhatThereAreTooManyOfGoesTheOldestFirst) {
  record_.set_ancestors(absl::StrCat("88:", kLast, ",77:4"));
  record_.mutable_policy()->set_keep_images(4);
  BeginWith("job:begun-with");
  const auto beyond = [&](const std::vector<v1::RestartPoint>& going = {}, size_t at_least = 0) {
    return ImageNames(points_.BeyondKept(points_.OfEarlierStarts(Stored()), going, at_least));
  };
  EXPECT_THAT(beyond(), ElementsAre("job:first")) << "three newer ones stay beside the point";
  points_.Add(PointOf("job:own"), false);
  points_.Add(PointOf("job:own-2"), false);
  EXPECT_THAT(beyond(), ElementsAre("job:first", "job:first-last", "job:a"));
  EXPECT_THAT(beyond({PointOf("job:own")}), ElementsAre("job:first", "job:first-last"));
  points_.Add(PointOf("job:asked-for", 0, kPointSecond, /*ours=*/false), false);
  EXPECT_THAT(beyond(), ElementsAre("job:first", "job:first-last", "job:a")) << "somebody else's is besides";
  for (const char* image : {"job:own-3", "job:own-4"}) points_.Add(PointOf(image), false);
  EXPECT_THAT(beyond(), ElementsAre("job:first", "job:first-last", "job:a", "job:b"));
  EXPECT_THAT(beyond({}, /*at_least=*/1), ElementsAre("job:first", "job:first-last", "job:a"));
  record_.mutable_policy()->set_keep_images(9);
  EXPECT_THAT(beyond(), IsEmpty());
}

TEST_F(EarlierStartsTest, SoundIsAnOwnOneThatIsOldEnoughAndStillThere) {
  BeginWith("job:begun-with");
  const auto has_sound = [&](int64_t sound_before_ns) {
    return points_.HasSoundOwn(Stored(), sound_before_ns);
  };
  EXPECT_FALSE(has_sound(INT64_MAX))
      << "the one that it has begun with may hold the death of the start before";
  points_.Add(PointOf("job:removed", 0, 2 * kPointSecond), false);
  EXPECT_FALSE(has_sound(INT64_MAX));
  points_.Add(PointOf("job:own", 0, 3 * kPointSecond), false);
  EXPECT_FALSE(has_sound(2 * kPointSecond));
  EXPECT_TRUE(has_sound(3 * kPointSecond));
}

TEST_F(EarlierStartsTest, WhatTheImageThatItHasBegunWithCallsSoundIsTheNewestThatIsThere) {
  record_.set_ancestors(absl::StrCat("88:", kLast, ",77:4"));
  BeginWith("job:begun-with");
  const auto sound = [&](const std::string& label) {
    record_.set_sound(label);
    return points_.SoundOfEarlierStarts(points_.OfEarlierStarts(Stored()), Stored());
  };
  EXPECT_EQ(sound(""), "");
  EXPECT_EQ(sound(absl::StrCat("88:", kLast - 9, "-", kLast - 6)), "job:a");
  EXPECT_EQ(sound(absl::StrCat("88:", kLast - 9, "-", kLast, ",77:1-4")), "job:b");
  EXPECT_EQ(sound(absl::StrCat("88:", kLast - 7, "-", kLast - 2, ",77:1-4")), "job:first-last")
      << "what somebody has asked for may go at any time";
  EXPECT_EQ(sound("66:1-18446744073709551615"), "");
}

// Of what comes on.
TEST_F(EarlierStartsTest, ALaterStartInheritsWhatIsSoundAndAddsItsOwn) {
  record_.set_sound("88:3-9");
  BeginWith("job:begun-with");
  record_.set_from_image("job:begun-with");
  record_.set_from_number(kLast);
  record_.set_numbers_before(kStart);
  record_.set_life_began_ns(kPointSecond);
  points_.NoteSound(5 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "88:3-9") << "what it has begun with may hold a death";
  points_.Add(PointOf("job:own", 0, 5 * kPointSecond), false);
  points_.Add(PointOf("job:young", 0, 6 * kPointSecond), false);
  EXPECT_EQ(points_.Sound(), absl::StrCat("99:", kStart + 1, "-", kStart + 1, ",88:3-9"));
  EXPECT_EQ(record_.sound_since(), 0u) << "what older versions know tells all";
  // It has gone back to what it has begun with.
  record_.set_from_image("job:begun-with");
  record_.set_numbers_before(record_.last_number());
  points_.NoteSound(9 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "88:3-9");
}

TEST_F(EarlierStartsTest, NoneThatLedToADeathIsSound) {
  BeginWith("job:begun-with");
  points_.Add(PointOf("job:own", 0, 2 * kPointSecond), false);
  record_.set_from_image("job:begun-with");
  record_.set_from_number(kLast);
  record_.set_numbers_before(record_.last_number());
  EXPECT_FALSE(points_.HasSoundOwn(Stored(), INT64_MAX));
}

TEST_F(RestartPointsTest, ANumberThatNoJobComesToIsNone) {
  record_.set_submitted_unix_ns(77);
  store::ImageInfo image;
  image.reference = "job:a";
  image.labels = {{v1::kSupervisedLabel, "77"}, {v1::kSupervisedNumberLabel, "18446744073709551615"}};
  points_.Find({image}, /*same_boot=*/true);
  EXPECT_EQ(record_.last_number(), 1u);
}

TEST_F(RestartPointsTest, TheNewestAndTheOneToGoBackToStay) {
  record_.mutable_policy()->set_keep_images(2);
  for (int i = 1; i <= 6; ++i)
    points_.Add(PointOf(absl::StrCat("job:", i), 0, i * kPointSecond), /*silent=*/false);
  // 3 is the newest that is sound, and 4 has to get old enough yet.
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 3 * kPointSecond)),
              ElementsAre("job:1", "job:2", "job:5"));
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 6 * kPointSecond)),
              ElementsAre("job:1", "job:2", "job:3", "job:4"));
  record_.mutable_policy()->set_keep_images(4);
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 6 * kPointSecond)),
              ElementsAre("job:1", "job:2"));
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/true, 6 * kPointSecond)),
              ElementsAre("job:1", "job:2", "job:3", "job:4", "job:5"));
}

TEST_F(RestartPointsTest, TheOneToGoBackToIsWhole) {
  record_.mutable_policy()->set_keep_images(1);
  for (int i = 1; i <= 4; ++i)
    points_.Add(PointOf(absl::StrCat("job:", i), 0, i * kPointSecond), /*silent=*/false);
  for (const bool make_room : {false, true}) {
    EXPECT_THAT(ImageNames(points_.Superfluous(make_room, 2 * kPointSecond, {"job:2"})), ElementsAre("job:2"))
        << "3 gets old enough";
    EXPECT_THAT(ImageNames(points_.Superfluous(make_room, 2 * kPointSecond, {"job:2", "job:3"})),
                ElementsAre("job:2", "job:3"));
    EXPECT_THAT(ImageNames(points_.Superfluous(make_room, 0, {"job:1"})), ElementsAre("job:1", "job:3"))
        << "none is old enough";
  }
}

TEST_F(RestartPointsTest, WhileItStoodStillForAnImageItHasNotOutlivedThat) {
  record_.mutable_policy()->set_keep_images(1);
  record_.set_submitted_unix_ns(99);
  for (int i = 1; i <= 2; ++i) points_.Add(PointOf(absl::StrCat("job:", i), 0, i * kPointSecond), false);
  points_.RanOnFrom("job:2", 9 * kPointSecond);
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 8 * kPointSecond)), IsEmpty());
  EXPECT_FALSE(points_.AnyOfLife(0, INT64_MAX));
  points_.NoteSound(8 * kPointSecond, 0, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:1-1");
  EXPECT_TRUE(record_.points(1).may_hold_death());
  points_.NoteSound(9 * kPointSecond, 0, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:1-2");
  EXPECT_FALSE(record_.points(1).may_hold_death());
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 9 * kPointSecond)), ElementsAre("job:1"));
}

TEST_F(RestartPointsTest, OthersImagesDoNotGo) {
  record_.mutable_policy()->set_keep_images(1);
  points_.Add(PointOf("job:asked", 0, kPointSecond, /*ours=*/false), false);
  points_.Add(PointOf("job:1", 0, 2 * kPointSecond), false);
  points_.Add(PointOf("job:2", 0, 3 * kPointSecond), false);
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, 9 * kPointSecond)), ElementsAre("job:1"));
}

TEST_F(RestartPointsTest, WhatLedToADeathGoesOnceThisLifeHasAnImage) {
  record_.mutable_policy()->set_keep_images(9);
  for (int i = 1; i <= 3; ++i) points_.Add(PointOf(absl::StrCat("job:", i)), /*silent=*/false);
  record_.set_from_image("job:1");
  record_.set_from_number(1);
  record_.set_numbers_before(3);
  record_.set_image_in_life(false);
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, INT64_MAX)), IsEmpty());
  points_.Add(PointOf("job:4"), false);
  EXPECT_THAT(ImageNames(points_.Superfluous(/*make_room=*/false, INT64_MAX)), ElementsAre("job:2", "job:3"));
}

// Of a life that died after three images and went on from the first, which has taken a fourth.
class WayToDeathTest : public RestartPointsTest {
 protected:
  WayToDeathTest() {
    record_.mutable_policy()->set_keep_images(1);
    for (int i = 1; i <= 3; ++i) points_.Add(PointOf(absl::StrCat("job:", i), 0, i * kPointSecond), false);
    record_.set_from_image("job:1");
    record_.set_from_number(1);
    record_.set_numbers_before(3);
    record_.set_image_in_life(false);
    record_.set_life_began_ns(10 * kPointSecond);
  }

  std::vector<std::string> Superfluous(bool make_room, int64_t sound_before_ns) {
    return ImageNames(points_.Superfluous(make_room, sound_before_ns));
  }
};

TEST_F(WayToDeathTest, AnImageOnItDoesNotPushOutTheOneThatWasGoneBackTo) {
  points_.Add(PointOf("job:4", 0, 15 * kPointSecond), false);
  EXPECT_THAT(Superfluous(/*make_room=*/false, 14 * kPointSecond), ElementsAre("job:2", "job:3"));
  EXPECT_THAT(Superfluous(/*make_room=*/true, 14 * kPointSecond), ElementsAre("job:2", "job:3"));
  points_.Add(PointOf("job:5", 0, 16 * kPointSecond), false);
  points_.Add(PointOf("job:6", 0, 17 * kPointSecond), false);
  EXPECT_THAT(Superfluous(/*make_room=*/false, 14 * kPointSecond), ElementsAre("job:2", "job:3", "job:5"))
      << "4 has to get old enough yet";
  EXPECT_THAT(Superfluous(/*make_room=*/false, 15 * kPointSecond), ElementsAre("job:2", "job:3", "job:1"));
}

TEST_F(WayToDeathTest, AnImageThatDiedSoonIsProvenByTheLifeThatGoesOnFromItAlone) {
  record_.set_from_image("job:3");
  record_.set_from_number(3);
  record_.set_numbers_before(2);
  points_.NoteSound(2 * kPointSecond, 0, /*is_over=*/true);
  EXPECT_TRUE(record_.points(2).may_hold_death());
  EXPECT_FALSE(record_.points(1).may_hold_death());
  EXPECT_TRUE(points_.FromMayHoldDeath());
  record_.set_from_number(2);
  EXPECT_FALSE(points_.FromMayHoldDeath());
  record_.set_from_number(3);
  // However long it was dead.
  record_.set_numbers_before(3);
  record_.set_life_began_ns(50 * kPointSecond);
  for (const int i : {4, 5, 6}) points_.Add(PointOf(absl::StrCat("job:", i), 0, 60 * kPointSecond), false);
  points_.NoteSound(49 * kPointSecond, INT64_MAX, /*is_over=*/false);
  EXPECT_THAT(Superfluous(/*make_room=*/false, 49 * kPointSecond), ElementsAre("job:1", "job:4", "job:5"));
  points_.NoteSound(50 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_FALSE(points_.FromMayHoldDeath());
  EXPECT_THAT(Superfluous(/*make_room=*/false, 50 * kPointSecond), ElementsAre("job:1", "job:2", "job:5"));
}

TEST_F(WayToDeathTest, WhereAnotherDaemonHasTakenItOverTheMachinesClockTells) {
  record_.clear_life_began_ns();
  record_.set_life_began_unix_ns(7);
  record_.mutable_points(0)->set_may_hold_death(true);
  points_.NoteSound(INT64_MAX, 6, /*is_over=*/false);
  EXPECT_TRUE(record_.points(0).may_hold_death());
  points_.NoteSound(0, 7, /*is_over=*/false);
  EXPECT_FALSE(record_.points(0).may_hold_death());
}

TEST_F(WayToDeathTest, AfterARestartOfTheMachineTheClockTells) {
  record_.set_numbers_before(1);
  for (v1::RestartPoint& point : *record_.mutable_points()) {
    point.clear_taken_ns();
    point.set_taken_unix_ns(static_cast<int64_t>(point.number()));
  }
  points_.NoteSound(INT64_MAX, 2, /*is_over=*/true);
  EXPECT_FALSE(record_.points(1).may_hold_death());
  EXPECT_TRUE(record_.points(2).may_hold_death());
}

// Somebody else's stays, and the next life goes on from what came after it.
TEST_F(WayToDeathTest, WhatLiesOnItNeverGetsProven) {
  record_.mutable_points(1)->set_ours(false);
  points_.Add(PointOf("job:4", 0, 15 * kPointSecond), false);
  points_.NoteSound(15 * kPointSecond, 0, /*is_over=*/true);
  record_.set_from_image("job:4");
  record_.set_from_number(4);
  record_.set_numbers_before(4);
  EXPECT_TRUE(record_.points(1).may_hold_death());
  EXPECT_TRUE(record_.points(2).may_hold_death());
  EXPECT_FALSE(record_.points(3).may_hold_death());
}

TEST_F(WayToDeathTest, TheOldestStaysWhileNoneIsProven) {
  record_.set_from_image("job:2");
  record_.set_from_number(2);
  for (v1::RestartPoint& point : *record_.mutable_points()) point.set_may_hold_death(true);
  for (const int i : {4, 5}) points_.Add(PointOf(absl::StrCat("job:", i), 0, 15 * kPointSecond), false);
  EXPECT_THAT(Superfluous(/*make_room=*/false, 14 * kPointSecond), ElementsAre("job:3", "job:4"));
}

TEST_F(WayToDeathTest, AnImageSaysWhichOnesBeforeItAreNotOnIt) {
  record_.set_submitted_unix_ns(99);
  points_.NoteSound(14 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:1-1");
  points_.Add(PointOf("job:4", 0, 15 * kPointSecond), false);
  EXPECT_EQ(points_.Sound(), "99:1-1") << "4 has to get old enough yet";
  points_.NoteSound(15 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:4-4,99:1-1");
  points_.Add(PointOf("job:5", 0, 16 * kPointSecond), false);
  points_.NoteSound(16 * kPointSecond, 0, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:4-5,99:1-1");
  // Goes on from the newest, whose life goes on.
  record_.set_from_image("job:5");
  record_.set_from_number(5);
  record_.set_numbers_before(5);
  points_.Add(PointOf("job:6", 0, 30 * kPointSecond), false);
  points_.NoteSound(30 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:4-6,99:1-1");
  // And back to the first once more, from where 4 and all that came of it is another way.
  record_.set_from_image("job:1");
  record_.set_from_number(1);
  record_.set_numbers_before(6);
  points_.NoteSound(30 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:1-1");
  points_.Add(PointOf("job:7", 0, 40 * kPointSecond), false);
  points_.NoteSound(40 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:7-7,99:1-1");
}

// That soon after it, five seconds ago was before all clocks began.
TEST_F(WayToDeathTest, ARestartOfTheMachineLeavesWhatWasSound) {
  record_.set_submitted_unix_ns(99);
  record_.set_numbers_before(2);
  for (v1::RestartPoint& point : *record_.mutable_points()) {
    point.clear_taken_ns();
    point.set_taken_unix_ns(static_cast<int64_t>(point.number()));
  }
  record_.mutable_points(2)->set_may_hold_death(true);
  points_.NoteSound(/*sound_before_ns=*/-1, 2, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:1-1") << "3 may hold the death";
  EXPECT_EQ(record_.sound(), "99:1-1");
  points_.NoteSound(/*sound_before_ns=*/-1, 3, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:3-3,99:1-1");
}

// A short one: the next life goes on from its image and lives.
TEST_F(WayToDeathTest, ALifeThatWasShortHasGoneBackToo) {
  record_.set_submitted_unix_ns(99);
  points_.Add(PointOf("job:4", 0, 11 * kPointSecond), false);
  points_.NoteSound(9 * kPointSecond, 0, /*is_over=*/true);
  EXPECT_EQ(points_.Sound(), "99:1-1");
  record_.set_from_image("job:4");
  record_.set_from_number(4);
  record_.set_numbers_before(4);
  record_.set_life_began_ns(20 * kPointSecond);
  points_.NoteSound(20 * kPointSecond, 0, /*is_over=*/false);
  EXPECT_EQ(points_.Sound(), "99:4-4,99:1-1");
}

TEST_F(WayToDeathTest, NorWhereRoomIsMadeBeforeTheLifeHasAnImage) {
  EXPECT_THAT(Superfluous(/*make_room=*/true, 14 * kPointSecond), ElementsAre("job:2"));
}

TEST_F(RestartPointsTest, OfAHangTheOldestStaysWhereThereIsNoOther) {
  for (int i = 1; i <= 3; ++i) points_.Add(PointOf(absl::StrCat("job:", i), 0, i * kPointSecond), false);
  EXPECT_THAT(ImageNames(points_.OfHang(kPointSecond)), ElementsAre("job:2", "job:3"));
  EXPECT_THAT(ImageNames(points_.OfHang(0)), ElementsAre("job:2", "job:3"));
  EXPECT_THAT(ImageNames(points_.OfHang(3 * kPointSecond)), IsEmpty());
}

TEST_F(RestartPointsTest, OfTheLastLifeAreThoseAfterTheNumbersBefore) {
  points_.Add(PointOf("job:1", 0, 2 * kPointSecond), false);
  record_.set_numbers_before(1);
  EXPECT_FALSE(points_.AnyOfLife(INT64_MAX, INT64_MAX));
  points_.Add(PointOf("job:2", 0, 4 * kPointSecond), false);
  EXPECT_TRUE(points_.AnyOfLife(4 * kPointSecond, 0));
  EXPECT_FALSE(points_.AnyOfLife(3 * kPointSecond, INT64_MAX));
  record_.mutable_points(1)->clear_taken_ns();
  record_.mutable_points(1)->set_taken_unix_ns(7);
  EXPECT_TRUE(points_.AnyOfLife(-1, 7)) << "of before this boot";
  EXPECT_FALSE(points_.AnyOfLife(INT64_MAX, 6));
}

TEST_F(RestartPointsTest, FilesAreKeptForTheOldestThatIsOurs) {
  EXPECT_FALSE(points_.OldestKeptUnixNanos().has_value());
  points_.Add(PointOf("job:asked", 0, kPointSecond, /*ours=*/false), false);
  const int64_t asked = record_.points(0).taken_unix_ns();
  EXPECT_EQ(points_.OldestKeptUnixNanos(), asked);
  points_.Add(PointOf("job:1", 0, 2 * kPointSecond), false);
  points_.Add(PointOf("job:2", 0, 3 * kPointSecond), false);
  EXPECT_EQ(points_.OldestKeptUnixNanos(), record_.points(1).taken_unix_ns());
}

TEST_F(RestartPointsTest, WhereTheTriedImageStands) {
  EXPECT_EQ(points_.Tried()->further, 0u) << "from its beginning";
  for (int i = 1; i <= 3; ++i) points_.Add(PointOf(absl::StrCat("job:", i)), false);
  record_.set_from_image("job:2");
  record_.set_from_number(2);
  EXPECT_EQ(points_.Tried()->same, 1u);
  EXPECT_EQ(points_.Tried()->further, 2u);
  points_.Remove("job:2");
  EXPECT_EQ(points_.Tried()->same, 1u) << "the next older one";
  EXPECT_EQ(points_.Tried()->further, 1u);
  record_.set_from_number(0);
  EXPECT_FALSE(points_.Tried().has_value());
}

}  // namespace
}  // namespace rekindle::daemon
