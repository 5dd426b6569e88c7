#include "base/timeline.h"

#include <gtest/gtest.h>

namespace rekindle {
namespace {

Span Make(const std::string& thread, const std::string& name, int64_t begin, int64_t end) {
  Span span;
  span.process = "p";
  span.thread = thread;
  span.name = name;
  span.begin_ns = begin;
  span.duration_ns = end - begin;
  return span;
}

TEST(TimelineTest, SinceEndsNow) {
  const int64_t before = MonotonicNanos();
  const Span span = SpanSince(before, "p", "t", "n", {{"pages", 3}});
  EXPECT_EQ(span.begin_ns, before);
  EXPECT_GE(span.duration_ns, 0);
  EXPECT_LE(span.end_ns(), MonotonicNanos());
  EXPECT_EQ(span.numbers.at("pages"), 3);
}

TEST(TimelineTest, ABeginThatIsStillToComeTakesNoTime) {
  EXPECT_EQ(SpanSince(MonotonicNanos() + 3'600'000'000'000, "p", "t", "n").duration_ns, 0);
}

TEST(TimelineTest, WhatEndsAfterItsParentIsCut) {
  Timeline timeline = {Make("a", "inner", 10, 120), Make("a", "outer", 0, 100), Make("a", "deep", 20, 110)};
  MakeSpansNest(&timeline);
  EXPECT_EQ(timeline,
            (Timeline{Make("a", "outer", 0, 100), Make("a", "inner", 10, 100), Make("a", "deep", 20, 100)}));
}

TEST(TimelineTest, NeighboursAndOtherThreadsStay) {
  const Timeline timeline = {Make("a", "first", 0, 100), Make("b", "other", 50, 150),
                             Make("a", "second", 100, 200), Make("a", "in it", 100, 130)};
  Timeline nested = timeline;
  MakeSpansNest(&nested);
  EXPECT_EQ(nested, timeline);
}

TEST(TimelineTest, TheLongerOfTwoThatBeginTogetherIsTheOuter) {
  Timeline timeline = {Make("a", "short", 0, 10), Make("a", "long", 0, 20)};
  MakeSpansNest(&timeline);
  EXPECT_EQ(timeline, (Timeline{Make("a", "long", 0, 20), Make("a", "short", 0, 10)}));
}

}  // namespace
}  // namespace rekindle
