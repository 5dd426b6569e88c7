#include "dedup_store/page_claims.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "base/sanitized.h"

namespace rekindle::store {
namespace {

using TicketPtr = std::shared_ptr<PageClaims::Ticket>;

// Some writers are always at work, and each that ends is followed by another.
TEST(PageClaimsTest, WhatIsLookedAtGrowsWithThePagesAndNotWithTheWritersBesides) {
  constexpr uint64_t kWriters = 300, kPages = kSanitized ? 200 : 2000;
  for (const size_t at_once : {2, 32}) {
    PageClaims claims;
    std::deque<TicketPtr> active;
    for (uint64_t writer = 0; writer < kWriters; ++writer) {
      active.push_back(claims.Join());
      for (uint64_t page = 0; page < kPages; ++page) {
        const PageClaims::Claimed claimed = claims.Claim(*active.back(), writer * kPages + page, 0);
        EXPECT_EQ(claimed.other, nullptr);
      }
      if (active.size() < at_once) continue;
      claims.Leave(*active.front());
      active.pop_front();
    }
    EXPECT_LE(claims.looked_at(), 4 * kWriters * kPages) << at_once;
    // And they do go.
    EXPECT_GT(claims.looked_at(), kWriters * kPages / 2) << at_once;
    for (; !active.empty(); active.pop_front()) claims.Leave(*active.front());
    const TicketPtr next = claims.Join();
    EXPECT_EQ(claims.Claim(*next, 0, 7).first_ordinal, 7u);
    EXPECT_EQ(claims.Claim(*next, kWriters * kPages - 1, 8).other, nullptr);
    claims.Leave(*next);
  }
}

TEST(PageClaimsTest, AClaimOutlivesItsWriterForThoseThatJoinedBefore) {
  PageClaims claims;
  const TicketPtr before = claims.Join();
  TicketPtr writer = claims.Join();
  EXPECT_EQ(claims.Claim(*writer, 1, 0).other, nullptr);
  claims.Leave(*writer);
  const PageClaims::Claimed claimed = claims.Claim(*before, 1, 0);
  EXPECT_EQ(claimed.other, writer);
  EXPECT_TRUE(claimed.other->AwaitSettled(absl::ZeroDuration()));
  claims.Leave(*before);
}

}  // namespace
}  // namespace rekindle::store
