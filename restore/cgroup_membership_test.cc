#include "restore/cgroup_membership.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::IsEmpty;

TEST(CgroupMembershipTest, OfOurselvesThereIsNothingToJoin) {
  auto membership = CgroupMembership::Of(::getpid());
  ASSERT_TRUE(membership.ok()) << membership.status();
  EXPECT_THAT(membership->processes(), IsEmpty());
  EXPECT_TRUE(membership->Join(::getpid()).ok());
}

TEST(CgroupMembershipTest, OfNobody) {
  EXPECT_EQ(CgroupMembership::Of(-1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CgroupMembership::OfContainer(-1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rekindle::restore
