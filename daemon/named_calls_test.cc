#include "daemon/named_calls.h"

#include <gtest/gtest.h>

namespace rekindle::daemon {
namespace {

TEST(NamedCalls, OnlyTheirUserHasThemGiveUp) {
  const auto calls = std::make_shared<NamedCalls>();
  const auto mine = calls->Begin(1000, "a"), other = calls->Begin(1000, "b"),
             theirs = calls->Begin(1001, "a");
  EXPECT_FALSE(calls->GiveUp(1002, "a"));
  EXPECT_TRUE(calls->GiveUp(1000, "a"));
  EXPECT_TRUE(*mine);
  EXPECT_FALSE(*other);
  EXPECT_FALSE(*theirs);
}

TEST(NamedCalls, OnesThatHaveEndedAreNotThere) {
  const auto calls = std::make_shared<NamedCalls>();
  auto first = calls->Begin(1000, "a"), second = calls->Begin(1000, "a");
  first.reset();
  EXPECT_TRUE(calls->GiveUp(1000, "a"));
  EXPECT_TRUE(*second);
  second.reset();
  EXPECT_FALSE(calls->GiveUp(1000, "a"));
}

}  // namespace
}  // namespace rekindle::daemon
