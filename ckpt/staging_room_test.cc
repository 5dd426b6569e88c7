#include "ckpt/staging_room.h"

#include <atomic>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

constexpr uint64_t kEverything = uint64_t{1} << 50;  // more than any machine has
constexpr uint64_t kLittle = 1u << 20;

StagingRoom Taken(const StagingRoom::Wanted& wanted) { return StagingRoom::Take(wanted, nullptr).value(); }

TEST(StagingRoomTest, WhatOthersAreYetToTouchIsNotFree) {
  const StagingRoom first = Taken({kEverything, 0, 0});
  EXPECT_GT(first.budget_bytes(), 0);
  EXPECT_LE(first.budget_bytes(), first.available_bytes() / 2);
  // One that is content with little does not wait; the first one's half is left out of its own.
  const StagingRoom second = Taken({kLittle, 0, 0});
  EXPECT_LE(second.budget_bytes(), second.available_bytes() / 3);
  EXPECT_EQ(Taken({kEverything, kLittle, 0}).budget_bytes(), kLittle);  // as little as it is told to
}

TEST(StagingRoomTest, WhoNeedsMuchWaitsUntilTheOthersHaveTouchedTheirs) {
  std::optional<StagingRoom> first = Taken({kEverything, 0, 0});
  std::atomic<bool> touched{false};
  std::thread second([&] {
    const StagingRoom room = Taken({kEverything, 0, 0});
    EXPECT_TRUE(touched);
    EXPECT_GT(room.budget_bytes(), room.available_bytes() / 3);
  });
  touched = true;
  first.reset();
  second.join();
}

TEST(StagingRoomTest, WhoWaitsCanBeCancelled) {
  const StagingRoom first = Taken({kEverything, 0, 0});
  std::atomic<bool> cancel{true};
  EXPECT_TRUE(absl::IsCancelled(StagingRoom::Take({kEverything, 0, 0}, &cancel).status()));
  // Those who wait behind one, as well.
  cancel = false;
  std::thread waits([&] {
    EXPECT_TRUE(absl::IsCancelled(StagingRoom::Take({kEverything, 0, 0}, &cancel).status()));
  });
  std::thread behind([&] {
    EXPECT_TRUE(absl::IsCancelled(StagingRoom::Take({kEverything, 0, 0}, &cancel).status()));
  });
  cancel = true;
  waits.join();
  behind.join();
}

TEST(StagingRoomTest, JobsOwnNeedsAreLeftOut) {
  EXPECT_EQ(Taken({kLittle, 0, kEverything}).budget_bytes(), 0);
}

}  // namespace
}  // namespace rekindle::ckpt
