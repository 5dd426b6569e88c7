#include "dedup_store/retention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace rekindle::store {
namespace {

constexpr int64_t kHour = 3600LL * 1'000'000'000;
constexpr int64_t kNow = 1'800'000'000LL * 1'000'000'000;

ImageInfo Image(const std::string& reference, int64_t hours_old,
                std::map<std::string, std::string> labels = {}, uid_t owner = 0) {
  ImageInfo image;
  image.reference = reference;
  image.created_unix_ns = kNow - hours_old * kHour;
  image.commit_number = static_cast<uint64_t>(100'000 - hours_old);
  image.labels = std::move(labels);
  image.owner = owner;
  return image;
}

RetentionRules Rules(uint64_t last, int64_t within_hours = 0,
                     std::vector<std::pair<std::string, std::string>> labels = {}) {
  RetentionRules rules;
  rules.keep_last = last;
  rules.keep_within_ns = within_hours * kHour;
  rules.keep_labels = std::move(labels);
  return rules;
}

TEST(Retention, WhatIsKept) {
  const std::vector<ImageInfo> images = {
      Image("web:1", 100, {{"stage", "prod"}}),
      Image("web:3", 10),
      Image("web:2", 50, {{"stage", "test"}}),
      Image("train:old", 300),
      Image("train:new", 200),
      Image("team/web:1", 400, {{"keep", ""}}),
  };
  struct Case {
    std::string what;
    RetentionRules rules;
    std::string kept;  // in the order of the decisions
  } cases[] = {
      {"no rule", Rules(0), "team/web:1 train:new train:old web:3 web:2 web:1"},
      {"the last one", Rules(1), "team/web:1 train:new web:3"},
      {"the last two", Rules(2), "team/web:1 train:new train:old web:3 web:2"},
      {"more than there are", Rules(99), "team/web:1 train:new train:old web:3 web:2 web:1"},
      {"within", Rules(0, 50), "web:3 web:2"},
      {"within nothing", Rules(0, 9), ""},
      {"last or within", Rules(1, 100), "team/web:1 train:new web:3 web:2 web:1"},
      {"label", Rules(0, 0, {{"stage", "prod"}}), "web:1"},
      {"label of another value", Rules(0, 0, {{"stage", "pro"}}), ""},
      {"empty label", Rules(0, 0, {{"keep", ""}}), "team/web:1"},
      {"absent label is not an empty one", Rules(0, 0, {{"stage", ""}}), ""},
      {"either label", Rules(0, 0, {{"stage", "prod"}, {"stage", "test"}}), "web:2 web:1"},
      {"last or label", Rules(1, 0, {{"stage", "prod"}}), "team/web:1 train:new web:3 web:1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    std::vector<std::string> kept;
    auto decisions = DecideRetention(images, c.rules, kNow, absl::UTCTimeZone());
    EXPECT_EQ(decisions.size(), images.size());
    for (const RetentionDecision& decision : decisions) {
      if (decision.keep) kept.push_back(decision.image.reference);
      EXPECT_EQ(decision.keep, c.rules.empty() || !decision.reasons.empty());
    }
    EXPECT_EQ(absl::StrJoin(kept, " "), c.kept);
  }
}

TEST(Retention, SaysWhy) {
  struct Case {
    int64_t hours;
    std::string text;
  } cases[] = {{1, "within 1h"}, {24, "within 1d"}, {36, "within 36h"}, {7 * 24, "within 1w"}};
  for (const Case& c : cases) {
    auto decisions = DecideRetention({Image("web:1", 0, {{"a", "b"}})}, Rules(3, c.hours, {{"a", "b"}}), kNow,
                                     absl::UTCTimeZone());
    ASSERT_EQ(decisions.size(), 1u);
    EXPECT_EQ(absl::StrJoin(decisions[0].reasons, "; "),
              absl::StrCat("last 3: number 1; ", c.text, "; label a=b"));
  }
}

TEST(Retention, OwnersOfOneNameDoNotCountAgainstEachOther) {
  auto decisions =
      DecideRetention({Image("web:1", 3, {}, 1000), Image("web:2", 2, {}, 1001), Image("web:3", 1, {}, 1001)},
                      Rules(1), kNow, absl::UTCTimeZone());
  std::vector<std::string> kept;
  for (const RetentionDecision& decision : decisions) {
    if (decision.keep) kept.push_back(decision.image.reference);
  }
  EXPECT_EQ(absl::StrJoin(kept, " "), "web:1 web:3");
}

TEST(Retention, TheLastIsTheOneThatWasCommittedLastWhateverTheClockSaid) {
  ImageInfo before = Image("web:1", 1), after = Image("web:2", 24);  // the clock was set back in between
  before.commit_number = 7;
  after.commit_number = 8;
  auto decisions = DecideRetention({before, after}, Rules(1), kNow, absl::UTCTimeZone());
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].image.reference, "web:2");
  EXPECT_TRUE(decisions[0].keep);
  EXPECT_FALSE(decisions[1].keep);
}

TEST(Retention, AnImageOfTheFutureIsYoung) {
  auto decisions =
      DecideRetention({Image("web:1", -5), Image("web:2", 5)}, Rules(0, 1), kNow, absl::UTCTimeZone());
  EXPECT_TRUE(decisions[0].keep);
  EXPECT_FALSE(decisions[1].keep);
}

std::vector<std::string> Kept(const std::vector<ImageInfo>& images, const RetentionRules& rules,
                              absl::TimeZone zone = absl::UTCTimeZone()) {
  std::vector<std::string> kept;
  for (const RetentionDecision& decision : DecideRetention(images, rules, kNow, zone)) {
    if (decision.keep) kept.push_back(decision.image.reference);
  }
  return kept;
}

// kNow is Friday, 15 January 2027, 8:00.
TEST(Retention, TheLastOfEachPeriod) {
  const std::vector<ImageInfo> images = {
      Image("web:today", 0),         Image("web:7.00", 1),        Image("web:7.30", 0),  // of the hour before
      Image("web:midnight", 8),      Image("web:thursday", 9),    Image("web:thursday-morning", 20),
      Image("web:monday", 4 * 24),   Image("web:sunday", 5 * 24), Image("web:2026", 15 * 24),
      Image("web:november", 50 * 24)};
  std::vector<ImageInfo> sorted = images;
  sorted[2].created_unix_ns = kNow - kHour / 2;
  sorted[0].commit_number = 100'001;
  struct Case {
    uint64_t RetentionRules::*rule;
    uint64_t keep;
    std::string kept;
  } cases[] = {
      {&RetentionRules::keep_hourly, 1, "web:today"},
      {&RetentionRules::keep_hourly, 2, "web:today web:7.30"},
      {&RetentionRules::keep_daily, 1, "web:today"},
      {&RetentionRules::keep_daily, 2, "web:today web:thursday"},
      // Days without one do not count.
      {&RetentionRules::keep_daily, 4, "web:today web:thursday web:monday web:sunday"},
      {&RetentionRules::keep_weekly, 2, "web:today web:sunday"},
      {&RetentionRules::keep_monthly, 2, "web:today web:2026"},
      {&RetentionRules::keep_monthly, 9, "web:today web:2026 web:november"},
      {&RetentionRules::keep_yearly, 2, "web:today web:2026"},
  };
  for (const Case& c : cases) {
    RetentionRules rules;
    EXPECT_TRUE(rules.empty());
    rules.*c.rule = c.keep;
    EXPECT_FALSE(rules.empty());
    EXPECT_EQ(absl::StrJoin(Kept(sorted, rules), " "), c.kept) << c.keep;
  }
  RetentionRules rules;
  rules.keep_daily = 1;
  rules.keep_weekly = 2;
  const std::vector<RetentionDecision> decisions = DecideRetention(sorted, rules, kNow, absl::UTCTimeZone());
  EXPECT_EQ(absl::StrJoin(decisions[0].reasons, "; "), "daily 1: 2027-01-15; weekly 2: from 2027-01-11");
}

TEST(Retention, PeriodsAreOfEachNameAndOfTheTimeZone) {
  RetentionRules rules;
  rules.keep_daily = 1;
  EXPECT_EQ(absl::StrJoin(Kept({Image("a:1", 48), Image("b:1", 1), Image("b:2", 0)}, rules), " "), "a:1 b:2");
  // 23:30 and 0:30 of the next day in UTC are one day further east.
  rules.keep_daily = 2;
  const std::vector<ImageInfo> images = {Image("a:evening", 9), Image("a:night", 7)};
  EXPECT_EQ(Kept(images, rules).size(), 2u);
  EXPECT_EQ(Kept(images, rules, absl::FixedTimeZone(3 * 3600)).size(), 1u);
}

TEST(Retention, APeriodThatComesAgainHasHadItsImage) {
  ImageInfo before = Image("web:1", 1), back = Image("web:2", 25), after = Image("web:3", 0);
  before.commit_number = 1;
  back.commit_number = 2;  // the clock was a day behind
  after.commit_number = 3;
  RetentionRules rules;
  rules.keep_daily = 7;
  EXPECT_EQ(absl::StrJoin(Kept({before, back, after}, rules), " "), "web:3 web:2");
}

}  // namespace
}  // namespace rekindle::store
