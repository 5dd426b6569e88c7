#include "functions/shares.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace rekindle::functions {
namespace {

TEST(SharesTest, NobodyHasMoreThanHisShare) {
  auto shares = std::make_shared<Shares>();
  std::shared_ptr<void> some = shares->Take("alice", 7, 10);
  EXPECT_NE(some, nullptr);
  EXPECT_EQ(shares->Take("alice", 4, 10), nullptr);
  EXPECT_NE(shares->Take("alice", 3, 10), nullptr);
  EXPECT_NE(shares->Take("bob", 10, 10), nullptr);
  some.reset();
  EXPECT_NE(shares->Take("alice", 10, 10), nullptr);
}

TEST(SharesTest, WhoWaitsIsCalledOnceWhenSomeIsGivenBack) {
  auto shares = std::make_shared<Shares>();
  const auto waiter = std::make_shared<int>(0);
  std::shared_ptr<void> all = shares->Take("alice", 10, 10);
  EXPECT_EQ(shares->TakeOrAwait("alice", 1, 10, waiter, [&] { ++*waiter; }), nullptr);
  EXPECT_EQ(shares->TakeOrAwait("alice", 11, 10, waiter, [&] { *waiter += 100; }), nullptr) << "never";
  EXPECT_EQ(*waiter, 0);
  all.reset();
  EXPECT_EQ(*waiter, 1);
  shares->Take("alice", 10, 10).reset();
  EXPECT_EQ(*waiter, 1);
}

// A tenant's connections that come, wait and go would take the memory of all.
TEST(SharesTest, NothingIsKeptOfThoseThatWaitedAndHaveGone) {
  auto shares = std::make_shared<Shares>();
  const auto stays = std::make_shared<int>(0), kept = std::make_shared<int>(0);
  const std::shared_ptr<void> all = shares->Take("alice", 10, 10);
  for (int i = 0; i < 100'000; ++i) {
    const auto goes = std::make_shared<int>(0);
    EXPECT_EQ(shares->TakeOrAwait("alice", 1, 10, i % 1000 == 0 ? stays : goes, [kept] { ++*kept; }),
              nullptr);
  }
  EXPECT_LT(kept.use_count(), 1000);
  EXPECT_GT(kept.use_count(), 100) << "those that still wait";
}

}  // namespace
}  // namespace rekindle::functions
