#include "cli/member_count.h"

#include <gtest/gtest.h>

namespace rekindle::cli {
namespace {

v1::MemberState At(uint32_t member, const char* state) {
  v1::MemberState reached;
  reached.set_member(member);
  reached.set_state(state);
  return reached;
}

TEST(MemberCountTest, EachMemberCountsOnceInEachState) {
  MemberCount count(3);
  EXPECT_EQ(count.Add(At(0, "frozen")), "1 of 3 members frozen");
  EXPECT_EQ(count.Add(At(2, "frozen")), "2 of 3 members frozen");
  EXPECT_EQ(count.Add(At(2, "frozen")), "2 of 3 members frozen");
  EXPECT_EQ(count.Add(At(2, "stored")), "1 of 3 members stored");
  EXPECT_EQ(count.Add(At(1, "frozen")), "3 of 3 members frozen");
}

TEST(MemberCountTest, HowManyThereAreNeedNotBeKnown) {
  MemberCount count;
  EXPECT_EQ(count.Add(At(0, "ready")), "1 member ready");
  EXPECT_EQ(count.Add(At(1, "ready")), "2 members ready");
}

}  // namespace
}  // namespace rekindle::cli
