#include "cli/bucket_retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kHour = 3600LL * 1'000'000'000;
constexpr int64_t kToday = 1'800'000'000LL * 1'000'000'000;
const absl::Time kADayBefore = absl::FromUnixNanos(kToday) - absl::Hours(24);

std::string OriginOfDigit(char digit) { return std::string(32, digit); }

class DatedFolder {
 public:
  // Taken, and put there, so many hours ago. `base` 0: whole.
  DatedFolder& Add(char origin, char base, int64_t hours_old, bool complete = true, bool part = false) {
    BucketImage image;
    image.created_unix_ns = kToday - hours_old * kHour;
    image.origin = OriginOfDigit(origin);
    if (base != 0) image.base = OriginOfDigit(base);
    image.tag = part ? absl::StrCat("link-", image.origin) : absl::StrCat("t", std::string(1, origin));
    const absl::Time written = absl::FromUnixNanos(image.created_unix_ns);
    objects_.push_back({image.ImageObject(), 100, written});
    if (complete) objects_.push_back({image.JsonObject(), 1, written});
    return *this;
  }

  DatedFolder& AddPart(char origin, char base, int64_t hours_old) {
    return Add(origin, base, hours_old, true, true);
  }

  // "TAG: REASONS", newest first; without reasons it goes.
  std::vector<std::string> Decided(const RetentionRules& rules, const BucketLabels* labels = nullptr) const {
    std::vector<std::string> told;
    for (const BucketVerdict& verdict : DecideBucketRetention(BucketImages(objects_), rules, labels, kToday,
                                                              kADayBefore, absl::UTCTimeZone())) {
      std::string text = IsStrayLink(verdict.image) ? absl::StrCat("part ", verdict.image.origin.substr(0, 1))
                                                    : verdict.image.tag;
      for (const std::string& reason : verdict.reasons) absl::StrAppend(&text, ": ", reason);
      EXPECT_EQ(verdict.keep, !verdict.reasons.empty());
      told.push_back(text);
    }
    return told;
  }

 private:
  std::vector<BucketObject> objects_;
};

RetentionRules Last(uint64_t n) {
  RetentionRules rules;
  rules.keep_last = n;
  return rules;
}

TEST(BucketRetentionTest, WhatAnImageBuildsUponStaysWithIt) {
  DatedFolder folder;
  folder.Add('1', 0, 500).Add('2', 0, 400).Add('3', '2', 300).Add('4', '3', 200);
  EXPECT_THAT(folder.Decided(Last(1)),
              ElementsAre("t4: last 1: number 1", "t3: t4 builds upon it", "t2: t4 builds upon it", "t1"));
  EXPECT_THAT(folder.Decided(Last(2)),
              ElementsAre("t4: last 2: number 1", "t3: last 2: number 2", "t2: t4 builds upon it", "t1"));
}

TEST(BucketRetentionTest, WhatIsOnItsWayStaysWithWhatItBuildsUpon) {
  DatedFolder folder;
  folder.Add('1', 0, 500).Add('2', 0, 400).Add('9', '1', 1, false).Add('8', '2', 100, false);
  EXPECT_THAT(folder.Decided(Last(1)),
              ElementsAre("t2: last 1: number 1", "t1: t9, which is on its way, builds upon it"));
}

TEST(BucketRetentionTest, WhatCannotBeUsedCountsForNoRule) {
  DatedFolder folder;
  folder.Add('1', 0, 500).Add('3', '7', 300).Add('4', '7', 1);
  EXPECT_THAT(folder.Decided(Last(1)),
              ElementsAre("t4: it was put there a short time ago: what it builds upon may come", "t3",
                          "t1: last 1: number 1"));
}

TEST(BucketRetentionTest, PartsStayAndGoWithTheirImage) {
  DatedFolder folder;
  folder.Add('1', 0, 9)
      .AddPart('2', 0, 8)
      .Add('3', '2', 7)
      .AddPart('4', 0, 6)
      .AddPart('5', '4', 5)
      .Add('6', '5', 4);
  EXPECT_THAT(folder.Decided(Last(1)), ElementsAre("t6: last 1: number 1", "part 5: t6 builds upon it",
                                                   "part 4: t6 builds upon it", "t3", "part 2", "t1"));
  folder.AddPart('7', 0, 30).AddPart('8', '7', 1).AddPart('9', 0, 30);
  const std::vector<std::string> now = folder.Decided(Last(1));
  ASSERT_EQ(now.size(), 9u);
  EXPECT_EQ(now[0], "part 8: it was put there a short time ago: what it builds upon may come");
  EXPECT_THAT(
      std::vector<std::string>(now.end() - 2, now.end()),
      ::testing::UnorderedElementsAre(::testing::MatchesRegex("part 7: link-8* builds upon it"), "part 9"));
}

TEST(BucketRetentionTest, LabelsThatAreNotKnownKeep) {
  DatedFolder folder;
  folder.Add('1', 0, 500).Add('2', 0, 400).Add('3', 0, 300);
  RetentionRules rules;
  rules.keep_labels = {{"keep", "yes"}};
  const BucketLabels labels = {{{OriginOfDigit('1'), "t1"}, {{"keep", "yes"}}},
                               {{OriginOfDigit('2'), "t2"}, {{"keep", "no"}}}};
  EXPECT_THAT(folder.Decided(rules), ElementsAre("t3", "t2", "t1"));
  EXPECT_THAT(folder.Decided(rules, &labels),
              ElementsAre("t3: its labels can't be read", "t2", "t1: label keep=yes"));
}

}  // namespace
}  // namespace rekindle::cli
