#include <gtest/gtest.h>

#include "daemon/rpcs.h"
#include "daemon/test_node.h"

namespace rekindle::daemon {
namespace {

constexpr uint64_t kLimit = 5'000'000'000;

class LimitsRpcTest : public ::testing::Test {
 protected:
  // What the owner of the request has then; 0: no limit.
  uint64_t Set(const v1::SetQuotaRequest& request) {
    v1::GetQuotaResponse response;
    const absl::Status set = daemon::SetQuota(*node_, call_, request, &response);
    EXPECT_TRUE(set.ok()) << set;
    for (const v1::OwnerQuota& owner : response.owners()) {
      if (owner.uid() == 61000) return owner.max_bytes();
    }
    return 0;
  }
  static v1::SetQuotaRequest OfOwner() {
    v1::SetQuotaRequest request;
    request.set_owner("61000");
    return request;
  }

  TestNode node_;
  Call call_;
};

// An earlier client may have meant that there is none.
TEST_F(LimitsRpcTest, AnOwnerWithoutALimitBesideOtherLimitsIsRefused) {
  v1::SetQuotaRequest first = OfOwner(), second = OfOwner(), third = OfOwner();
  first.set_owner_max_bytes(kLimit);
  EXPECT_EQ(Set(first), kLimit);
  second.set_high_water_percent(90);
  v1::GetQuotaResponse response;
  const absl::Status refused = daemon::SetQuota(*node_, call_, second, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  third.set_owner_max_bytes(0);
  third.set_high_water_percent(80);
  EXPECT_EQ(Set(third), 0u);
}

TEST_F(LimitsRpcTest, EarlierClientsLeaveOutTheZeroThatMeansNoLimit) {
  v1::SetQuotaRequest first = OfOwner();
  first.set_owner_max_bytes(kLimit);
  EXPECT_EQ(Set(first), kLimit);
  EXPECT_EQ(Set(OfOwner()), 0u);
}

}  // namespace
}  // namespace rekindle::daemon
